"""Verbs for large runs and later additions: extend, lens, worker, status."""
