"""Chooses the next points of a sweep from the results of earlier ones."""
