"""Sweeps: the points of a job, submitted as Slurm arrays, and their results."""
