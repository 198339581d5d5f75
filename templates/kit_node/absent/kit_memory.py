"""`kit_memory` in a run without `[checkpoint] memory_every`: no step is due, and none is there."""

__all__ = ["Memory"]


class Memory:
    """The methods of the real one. They need no torch, and no other rank."""

    every, took = 0, 0.0

    def __init__(self, every=None, *, gather=None, path=None, node=None, rank=None):
        pass

    def due(self, step):
        """Whether `step` is to be saved: never."""
        return False

    def newest(self):
        """The newest step: None."""

    def load(self, *, at_least=0):
        """The newest step, with its state: None."""

    def save(self, step, state, shared=None):
        """Keep nothing."""

    def wait(self):
        """Wait for nothing."""

    def close(self):
        """Close nothing."""
