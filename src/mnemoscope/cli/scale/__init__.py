"""Verbs for large runs: workers, fleets, what is added later."""
