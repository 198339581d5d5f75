"""Runs: a submitted plan is a run, with one folder that holds all its data."""
