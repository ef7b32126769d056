"""Checkpoints of small training codes, read as networks of transformers: one reader a format."""
