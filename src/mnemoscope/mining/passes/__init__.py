"""Passes that follow the text, one table each."""
