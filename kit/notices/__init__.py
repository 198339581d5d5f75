"""Notices: tell the people that a job names what happened to its run, each event once. A dead endpoint never harms the run."""
