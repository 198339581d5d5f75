"""Runs as files: export, import, prune."""
