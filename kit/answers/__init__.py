"""The data that commands print with --json and that the Python API returns: one model of each, made in one place."""
