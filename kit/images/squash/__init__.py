"""Squashes a tree, and reads squashfs files."""
