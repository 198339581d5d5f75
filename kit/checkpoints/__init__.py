"""Checkpoints on disk: how large one becomes, and other formats of one."""
