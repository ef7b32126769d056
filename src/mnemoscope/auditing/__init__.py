"""Audits what a model memorised: how well it knows strings, and which memories carry them."""

from mnemoscope.auditing.audit import Audit, AuditOptions, audit
from mnemoscope.auditing.record import AuditedString, Carrier, SwitchedOff

__all__ = ["Audit", "AuditOptions", "AuditedString", "Carrier", "SwitchedOff", "audit"]
