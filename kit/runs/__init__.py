"""A submitted plan is a run: one folder that holds all there is to know of it."""
