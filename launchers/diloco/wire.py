"""Tells a lost connection, after which groups meet again, from a mistake of this program, after which it must end."""

from collections.abc import Iterator
from contextlib import contextmanager


class Lost(Exception):  # noqa: N818 - a way to continue, not an error
    """A peer, or the connection to it, failed."""


@contextmanager
def traffic() -> Iterator[None]:
    """Around calls that talk to other groups, and nothing else: what fails in here is a lost peer."""
    try:
        yield
    except Exception as error:
        # torch and torchft raise RuntimeError, TimeoutError, AssertionError and more, as the peer happens to die.
        raise Lost(f"{type(error).__name__}: {error}") from error
