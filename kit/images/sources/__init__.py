"""Reads the files of an image from engines, registries, layers and folders."""
