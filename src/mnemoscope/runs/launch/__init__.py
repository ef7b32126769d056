"""Start workers: as processes of this machine, on Ray, on SLURM."""
