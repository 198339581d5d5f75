"""`kit serve`: the pages of `kit report` over all runs of a project, as they change, for one reader's own machine."""
