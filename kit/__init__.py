"""A containerized launcher kit for Slurm clusters with Enroot and Pyxis."""

__version__ = "0.1.0"
