"""Lenses: maps from every layer to the head, how they are fitted, and what they read."""
