"""Clusters reached over ssh: a persistent connection to each, shell programs that run there, a local mirror of run folders.

The kit need not be installed on the cluster. It uses sh, coreutils, find, awk, gzip, tar and Slurm's commands.
"""
