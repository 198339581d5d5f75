"""Clusters that are reached over ssh: a kept connection to each, programs in sh that run there, a mirror of run folders here.

Nothing of the kit is needed on the other side: sh, coreutils, find, awk, gzip, tar and Slurm's commands.
"""
