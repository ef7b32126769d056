"""Verbs that read an atlas."""
