"""Hosts of clusters: this machine, or a login node over ssh; the status of runs there. See host.py for the Protocol."""
