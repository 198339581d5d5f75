"""One training over two clusters."""
