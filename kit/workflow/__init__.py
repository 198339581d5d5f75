"""Runs that wait for other runs: dependencies, and the stages of one job file."""
