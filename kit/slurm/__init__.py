"""Slurm: the embedded cluster, and Slurm's commands on any cluster."""
