"""Passes over a layer's vectors: its values and keys against the vocabulary and each other."""
