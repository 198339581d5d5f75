"""Reads a run folder: manifest, events, logs, metrics. It asks no cluster."""
