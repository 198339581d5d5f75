"""Slurm: the embedded cluster, and the commands of any other."""
