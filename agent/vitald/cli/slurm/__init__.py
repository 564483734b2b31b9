"""`vitald slurm`: what Slurm's programs call."""
