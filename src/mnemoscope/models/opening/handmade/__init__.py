"""Models with weights set by hand, for tests and lessons."""
