"""What starts workers: processes of this machine, Ray, SLURM."""
