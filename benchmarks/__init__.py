"""Measurements of the kit next to the tools that a user would choose instead; see README.md."""
