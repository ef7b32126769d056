"""The same plan on many workers: leases, launchers, one display."""
