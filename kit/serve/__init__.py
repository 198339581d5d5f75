"""`kit serve`: live pages, as `kit report` makes them, of all runs of a project. Only this machine can open them."""
