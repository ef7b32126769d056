"""The store: a self-describing folder of tables (FORMAT.md); reads and writes it without torch."""
