"""Notices: what happened to a run, told once to whom its job names. A dead endpoint costs time, and nothing of the run."""
