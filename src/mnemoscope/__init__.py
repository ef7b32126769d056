"""Mnemoscope: read the feed-forward layers of a language model as key-value memories."""
