#!/bin/bash
# shielded.sh COMMAND…: becomes a command that ignores the signals meant for the ranks. Slurm signals every process of a step; the
# container's own helpers (a FUSE daemon, a monitor process) must outlive a TERM so that the program can save. unignore.sh undoes it.
trap '' TERM USR1 USR2 INT HUP
exec "$@"
