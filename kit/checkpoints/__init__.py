"""Checkpoints on disk: their size, and their conversion to other formats."""
