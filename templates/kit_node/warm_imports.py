"""Imports the modules of a warm process, and finds what a fork could not copy of them."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import time
from collections.abc import Sequence

# Modules that belong to one rank from their import on.
_OF_ONE_RANK = ("kit_rank", "kit_callbacks", "kit_keep", "kit_recorder")


class _NotHere:
    """Refuses the import of modules that belong to one rank."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name.partition(".")[0] in _OF_ONE_RANK:
            raise ImportError(f"{name} belongs to one rank")


def load(modules: Sequence[str]) -> str:
    """Import modules. Returns the problem, if one cannot be imported or has begun to use a GPU."""
    sys.meta_path.insert(0, _NotHere)
    try:
        for name in modules:
            try:
                importlib.import_module(name)
            except BaseException as error:  # noqa: BLE001 - whatever the module does
                return f"{name} cannot be imported: {type(error).__name__}: {error}"
    finally:
        sys.meta_path.remove(_NotHere)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "the imports have begun to use a GPU, which a fork cannot share"
    # Modules stay until the end. Without this, each garbage collection of a rank would look at all of their objects, and copy their
    # pages. With torch this takes 0.17 seconds, for every rank.
    gc.collect()
    gc.freeze()
    return ""


def fork_problem() -> str:
    """The problem, if threads are left that a fork would not copy. OpenBLAS ends its own before a fork, and starts them again."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    for _ in range(20):
        names = _threads()
        if not names:
            return ""
        time.sleep(0.05)
    return f"the imports have left threads, which a fork does not copy: {' '.join(names)}"


def _threads() -> list[str]:
    """Names of the threads of this process beside the main one."""
    names = []
    for thread in os.listdir("/proc/self/task"):  # noqa: PTH208
        if int(thread) != os.getpid():
            try:
                with open(f"/proc/self/task/{thread}/comm", encoding="utf-8") as file:  # noqa: PTH123
                    names.append(file.read().strip())
            except OSError:
                continue
    return names
