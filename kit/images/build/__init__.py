"""Builds an image from a Dockerfile, with an engine or without one."""
