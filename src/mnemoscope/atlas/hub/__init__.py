"""Atlases on the hub, as files here."""
