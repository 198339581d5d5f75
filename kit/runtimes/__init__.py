"""Container runtimes: each is one module, found by name. A new runtime is a new module that satisfies `base.Runtime`."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from kit.runtimes.base import Container, Runtime

__all__ = ["Container", "Runtime", "get"]


def get(name: str) -> Runtime:
    """The runtime of kit/runtimes/<name>.py."""
    return cast(Runtime, import_module(f"kit.runtimes.{name}").runtime)
