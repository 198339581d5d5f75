"""`kit_keep` in a run without `[retry] keep`."""

__all__ = ["run"]


def run(function):
    """Call the function once, and return what it returns."""
    return function()
