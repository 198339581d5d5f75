"""Separates a lost connection, after which groups meet again, from an error of this program, after which it must end."""

from collections.abc import Iterator
from contextlib import contextmanager


class PeerLost(Exception):  # noqa: N818 - a way to continue, not an error
    """A peer, or the connection to it, failed."""


@contextmanager
def traffic() -> Iterator[None]:
    """Wraps calls that communicate with other groups. Any error inside counts as a lost peer, so the block must have no other
    calls."""
    try:
        yield
    except Exception as error:
        # torch and torchft raise RuntimeError, TimeoutError, AssertionError and more, depending on how the peer died.
        raise PeerLost(f"{type(error).__name__}: {error}") from error
