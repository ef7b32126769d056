"""Addresses that people visit, each beside its JSON."""
