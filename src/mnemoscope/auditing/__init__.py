"""Audits what a model memorised: how well it knows strings, and which memories carry them."""

from mnemoscope.auditing.audit import Audit, AuditedString, Carrier, SwitchedOff, audit
from mnemoscope.foundation.options.prompt_options import AuditOptions

__all__ = ["Audit", "AuditOptions", "AuditedString", "Carrier", "SwitchedOff", "audit"]
