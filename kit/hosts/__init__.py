"""Where a cluster's Slurm and run folders are: this machine, or a login node over ssh. See host.py for the Protocol."""
