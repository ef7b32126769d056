"""Audits what a model memorised: how well it knows strings, and which memories carry them."""

from mnemoscope.auditing.audit import Audit, audit
from mnemoscope.auditing.record import AuditedString, Carrier, SwitchedOff
from mnemoscope.foundation.options.audit_options import AuditOptions

__all__ = ["Audit", "AuditOptions", "AuditedString", "Carrier", "SwitchedOff", "audit"]
