"""Gives a forked child what a plain start of the rank's program would have given it."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from warm_request import StartRequest, block

_PDEATHSIG = 1


class Closes(Protocol):
    """A socket, or another object with an open file."""

    def close(self) -> object:
        """Close the file."""


class Areas:
    """The memory that /proc shows as cmdline and environ of this process and its children, and the environment of its start."""

    def __init__(self) -> None:
        self.env = _environment()
        self._stack = _stack()

    @property
    def room(self) -> int:
        """Bytes for the environment of a rank."""
        return self._stack[3] - self._stack[2]

    def show(self, env: Mapping[str, str], argv: Sequence[str]) -> None:
        """Set os.environ, and what /proc shows. Nothing points into the area of the environment: os.environ has copies."""
        # Python itself sets LC_CTYPE in the C locale (PEP 538). It would do the same for the rank.
        coerced = (
            {"LC_CTYPE": os.environ["LC_CTYPE"]} if "LC_CTYPE" in os.environ and "LC_CTYPE" not in self.env else {}
        )
        os.environ.clear()
        os.environ.update({**env, **coerced})
        arg_start, arg_end, env_start, env_end = self._stack
        for begin, end, text in (
            (arg_start, arg_end, b"".join(os.fsencode(word) + b"\0" for word in argv)),
            (env_start, env_end, block(env)),
        ):
            ctypes.memset(begin, 0, end - begin)
            ctypes.memmove(begin, text[: end - begin - 1], min(len(text), end - begin - 1))


def become(
    request: StartRequest, areas: Areas, parent: int, libc: ctypes.CDLL, *, closed: Iterable[int | Closes]
) -> None:
    """Be the rank that the request asks for. Signals stay blocked until all of it is there.

    parent: the number of the warm process; closed: open files and sockets of the warm process.
    """
    libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
        wanted = signal.SIG_IGN if number in request["ignored"] else signal.SIG_DFL
        if signal.getsignal(number) not in (wanted, None):
            signal.signal(number, wanted)
    if signal.SIGINT not in request["ignored"]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # A rank that signals its own process group must not hit the others.
    os.setsid()
    for standard, fd in enumerate(request["fds"]):
        os.dup2(fd, standard)
    for one in closed:
        if isinstance(one, int):
            os.close(one)
        else:
            one.close()
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    os.sched_setaffinity(0, request["cpus"])
    for name, limits in request["limits"].items():
        resource.setrlimit(getattr(resource, name), (limits[0], limits[1]))
    # signal.sh tells a rank's program by its parent, which this variable names.
    areas.show({**request["env"], "KIT_RANK_SHELL": str(parent)}, request["argv"])
    if "numpy.random" in sys.modules:
        # Python reseeds `random` in a child, numpy does not. torch begins with the same seed in every process.
        sys.modules["numpy.random"].seed()
    signal.pthread_sigmask(signal.SIG_SETMASK, request["mask"])


def _environment() -> dict[str, str]:
    """The environment with which this process was started, before Python or a module changed it."""
    with open("/proc/self/environ", "rb") as file:  # noqa: PTH123
        words = [os.fsdecode(word).partition("=") for word in file.read().split(b"\0")]
    return {name: value for name, equals, value in words if equals}


def _stack() -> list[int]:
    """arg_start, arg_end, env_start and env_end: fields 48 to 51 of proc(5)'s stat."""
    with open("/proc/self/stat", "rb") as file:  # noqa: PTH123
        return [int(word) for word in file.read().rpartition(b")")[2].split()[45:49]]
