"""Where a network has its feed-forward layers: by its family, or by its structure."""
