"""Clusters: Slurm of this machine, of an embedded cluster, and of clusters over ssh; the status of runs there."""
