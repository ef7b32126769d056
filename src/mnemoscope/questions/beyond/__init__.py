"""Questions that the paper did not ask."""
