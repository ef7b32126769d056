"""The ten questions of the paper."""
