"""Sweeps: the points of a job, sent as Slurm arrays, and their results."""
