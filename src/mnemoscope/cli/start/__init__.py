"""Verbs to start with: mine, demo, train, inspect."""
