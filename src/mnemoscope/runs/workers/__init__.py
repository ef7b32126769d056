"""What the processes of one run do, and say to each other through files: leases, heartbeats, states."""
