"""Calls a program's training function, and after the death of another rank calls it again, in the same process: `[retry] keep`.

    from kit_keep import run
    sys.exit(run(train))

When a rank dies, its node's warm process knows within milliseconds, and all nodes soon after. This module then breaks the process
groups, so that no collective waits for the dead rank. The training function is left by the error that this causes, its variables
are dropped, and once the dead rank has been forked again, the function is called again: with another MASTER_PORT and
KIT_RESTART_COUNT in the environment, as at a new start. Imports, the compiled model code and the CUDA context stay.

The function has to join the process group itself, and to continue from the newest checkpoint. It leaves the group after its model
is gone: DDP's reducer, as the last owner of the group, waits for gloo's threads, which may wait for Python (torch 2.13). Objects
that it keeps outside of its own variables stay as they are. All TCP connections of the process are closed, so one that it has
elsewhere must be opened again. A rank that does not leave the function within five seconds is killed and forked again.

Outside a run with `[retry] keep`, run(train) only calls train(). Works with any Python from 3.8, and needs no installation.
"""

from __future__ import annotations

import gc
import os
import queue
import socket
import stat
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from warm_meeting import wait_for_rank_0

__all__ = ["run"]

T = TypeVar("T")

# Seconds for which an error that another rank's death may have caused waits for the news of it.
_NEWS_S = 5.0
# Seconds between two breaks of the process groups, while the function has not been left: it may be joining one right now.
_AGAIN_S = 0.1


def run(function: Callable[[], T]) -> T:
    """Call the function, again after each death of another rank, and return what it returns."""
    link = _Link.of_this_process()
    if link is None:
        return function()
    link.say("ready")
    while True:
        try:
            result = function()
        except Exception as error:
            if not link.broken.wait(_NEWS_S if _is_of_a_peer(error) else 0.0):
                raise
            _drop(error)
        else:
            # From now on this rank ends. If another one dies, this one starts anew.
            link.say("leaves")
            return result
        _leave_groups()
        link.wait_for_start()


class _Link:
    """The connection to the warm process of this node. broken: set while another rank is dead and the function must be left."""

    _own: _Link | None = None

    def __init__(self, number: int) -> None:
        self._socket = socket.socket(fileno=number)
        self._socket.setblocking(True)
        self.broken = threading.Event()
        self._left = threading.Event()
        self._starts: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="kit-keep", daemon=True).start()

    @classmethod
    def of_this_process(cls) -> _Link | None:
        """The link; None where the warm process did not give one, or gave it to a parent of this process."""
        number = os.environ.pop("KIT_KEEP_FD", None)
        if cls._own is None and number is not None:
            cls._own = cls(int(number))
        return cls._own

    def say(self, word: str) -> None:
        """Tell the warm process. If it is gone, so is this rank soon."""
        try:
            self._socket.sendall(word.encode())
        except OSError:
            return

    def wait_for_start(self) -> None:
        """Wait for the next start, and take its environment."""
        self._left.set()
        self.say("waits")
        os.environ.update(self._starts.get())
        if "kit_rank" in sys.modules:
            sys.modules["kit_rank"].progress.start_again()
        self.say("ready")
        wait_for_rank_0(os.environ)

    def _listen(self) -> None:
        while True:
            text = self._socket.recv(65536).decode()
            if not text:
                return
            if text == "leave":
                self._left.clear()
                self.broken.set()
                while not self._left.is_set():
                    _break_groups()
                    self._left.wait(_AGAIN_S)
            else:
                self.broken.clear()
                self._starts.put(dict(line.split("=", 1) for line in text.splitlines()[1:]))


def _is_of_a_peer(error: Exception) -> bool:
    """Whether an error looks like one of a collective whose peer is gone."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not isinstance(error, RuntimeError):
        return False
    known = isinstance(error, getattr(distributed, "DistError", ()))
    return known or any(word in str(error) for word in ("gloo", "NCCL", "Connection", "Broken pipe"))


def _break_groups() -> None:
    """Make all collectives fail that run in other threads. Never raises: it is called while the groups change."""
    # A group that is just made or left may refuse; the next call finds it.
    with suppress(Exception):
        _abort_on_gpus()
    # Gloo's abort() wakes no waiting collective (torch 2.13). A closed connection does, at both ends.
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        # A file that is closed meanwhile, or a socket that listens: gloo would abort the process if that was shut down.
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                _shut_down(int(name))


def _shut_down(number: int) -> None:
    """Shut a TCP connection down, for all who have it open."""
    with socket.socket(fileno=os.dup(number)) as copy:
        if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM:
            copy.getpeername()
            copy.shutdown(socket.SHUT_RDWR)


def _abort_on_gpus() -> None:
    world = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    for group, (backend, _) in [*world.pg_map.items()] if world is not None else ():
        if "nccl" in str(backend):
            group.abort()


def _drop(error: BaseException | None) -> None:
    """Let go of what the frames of an error hold, such as the model of the call that it ended."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error.__traceback__, error = None, error.__context__


def _leave_groups() -> None:
    """Forget the process groups, and free the memory of the last call."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        try:
            distributed.destroy_process_group()
        except Exception:  # noqa: BLE001 - broken groups may refuse their end
            distributed.distributed_c10d._abort_process_group()
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
