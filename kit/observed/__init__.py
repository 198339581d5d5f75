"""Learns a run's progress and curves from what its program writes for others: its log, and the files of trackers.

It is for programs that report nothing to the kit. All files may be of another user, so each is read with limits of size and number.
"""
