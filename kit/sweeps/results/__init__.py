"""Tables and plots of what the points of a sweep reached."""
