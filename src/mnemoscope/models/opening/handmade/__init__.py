"""Models whose weights were worked out by hand, for tests and lessons."""
