"""The points of a sweep: what each one sets."""
