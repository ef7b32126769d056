"""What the processes of one run say to each other through files: leases and heartbeats."""
