"""Has this node's warm process start a rank, and stands for it: ends with its exit code or signal, and passes signals on.

    python -I -S warm_client.py NAME SECONDS SHELL PYTHON PROGRAM…     SHELL: the number of rank.sh's process

SECONDS: how long to look for the warm process, which may still be starting. Without it, or when it refuses, this process prints why
and becomes the program itself, as in a run without `[retry] warm`. Works with any Python from 3.8.
"""

from __future__ import annotations

import array
import json
import os
import resource
import signal
import socket
import struct
import sys
import time

# This program starts with every rank, and typing takes some milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

_AGAIN_S = 0.02
# A warm process that imports for longer than this is not waited for.
_ANSWER_S = 600
# The time for this task's slurmstepd to follow that of the warm process.
_ALSO_S = 1.0
_PASSED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main() -> NoReturn:
    """Ask, and end as the rank does. The environment is read as it was given: Python may have added to its own copy."""
    name, seconds, shell, *argv = sys.argv[1:]
    with open("/proc/self/environ", "rb") as file:  # noqa: PTH123
        words = [os.fsdecode(word).partition("=") for word in file.read().split(b"\0")]
    env = {variable: value for variable, equals, value in words if equals}
    # Python itself ignores two signals, which it gives back to a program that it starts.
    ignored = [
        n for n in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ} if signal.getsignal(n) == signal.SIG_IGN
    ]
    slurmstepd = _stat_of(env.get("KIT_SLURMSTEPD"))
    connection, reason = _connected(name, float(seconds))
    if connection is not None:
        reason = _ask(connection, argv, env, ignored, slurmstepd)
    if connection is None or reason:
        _say(f"{reason}; the rank imports by itself")
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(argv[0], argv, {**env, "KIT_RANK_SHELL": shell})
    _end(*_stand_for(connection, slurmstepd))


def _connected(name: str, seconds: float) -> tuple[socket.socket | None, str]:
    """A connection to the warm process of the same user, and ''; None and the reason when there is none within the time."""
    end = time.monotonic() + seconds
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect("\0" + name)
            uid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
            if uid == os.geteuid():
                return connection, ""
            connection.close()
            return None, f"the socket of this node's warm process belongs to another user, uid {uid}"
        except OSError:
            connection.close()
        if time.monotonic() >= end:
            return None, "there is no warm process on this node"
        time.sleep(_AGAIN_S)


def _ask(
    connection: socket.socket,
    argv: list[str],
    env: dict[str, str],
    ignored: list[signal.Signals],
    slurmstepd: int | None,
) -> str:
    """Send the request. Returns the reason of a refusal, or ''."""
    umask = os.umask(0)
    os.umask(umask)
    limits = sorted(limit for limit in dir(resource) if limit.startswith("RLIMIT_"))
    request = {
        "argv": argv,
        "env": env,
        "cwd": os.getcwd(),  # noqa: PTH109
        "umask": umask,
        "limits": {limit: resource.getrlimit(getattr(resource, limit)) for limit in limits},
        "cpus": sorted(os.sched_getaffinity(0)),
        "ignored": [int(number) for number in ignored],
        "mask": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
    }
    text = json.dumps(request).encode()
    fds = array.array("i", (0, 1, 2))
    connection.settimeout(_ANSWER_S)
    try:
        connection.sendmsg([struct.pack("!I", len(text))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        connection.sendall(text)
        # From here on, a signal is meant for the rank. It must not end this process first.
        _pass_signals(connection, slurmstepd)
        answer = _line(connection)
    except OSError:
        answer = ""
    if answer == "started":
        connection.settimeout(None)
        return ""
    for number in _PASSED:
        signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
    return answer.partition(" ")[2] or "the warm process did not answer"


def _pass_signals(connection: socket.socket, slurmstepd: int | None) -> None:
    def passed(number: int, _: FrameType | None) -> None:
        # Pyxis's tasks get HUP when their slurmstepd was killed. The rank is in the step of the warm process, where nobody would
        # learn why it ended with 129: it is killed, as Slurm would have done.
        if number == signal.SIGHUP and _is_gone(slurmstepd):
            number = signal.SIGKILL
        try:
            connection.sendall(f"{int(number)}\n".encode())
        except OSError:
            return

    for number in _PASSED:
        signal.signal(number, passed)


def _stat_of(pid: str | None) -> int | None:
    """The file of /proc that tells whether this process lives; None where it cannot be seen.

    It is opened early: once the container's file system has ended, no path can be opened.
    """
    try:
        return os.open(f"/proc/{int(pid or '')}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None


def _is_gone(stat: int | None) -> bool:
    """Whether the slurmstepd of this file does not live any more. As in lib/orphans.sh, a zombie does not."""
    if stat is None:
        return False
    try:
        _, name, rest = os.pread(stat, 4096, 0).partition(b"(slurmstepd) ")
    except OSError:
        return True
    return not name or rest[:1] in (b"Z", b"X")


def _stand_for(connection: socket.socket, slurmstepd: int | None) -> tuple[str, int]:
    """Wait for the rank's end. Returns 'exit' and its code, or 'killed' and its signal."""
    while True:
        try:
            line = _line(connection)
        except OSError:
            line = ""
        word, _, number = line.partition(" ")
        if word == "signalled":
            # signal.sh signals the rank. rank.sh notes by the same signal that its program was told to end.
            os.kill(os.getppid(), int(number))
        elif word in ("exit", "killed"):
            return word, int(number)
        else:
            _say("the warm process is gone, and its ranks with it")
            # All slurmstepds of a node may be killed one after the other, and that of the warm process first. rank.sh looks for its
            # own next, to tell why.
            end = time.monotonic() + _ALSO_S
            while slurmstepd is not None and not _is_gone(slurmstepd) and time.monotonic() < end:
                time.sleep(_AGAIN_S)
            return "killed", signal.SIGKILL


def _line(connection: socket.socket) -> str:
    """A line of the warm process, read by single bytes; '' at the end."""
    text = b""
    while True:
        one = connection.recv(1)
        if not one:
            return ""
        if one == b"\n":
            return text.decode(errors="replace")
        text += one


def _end(word: str, number: int) -> NoReturn:
    if word == "killed":
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
        os.kill(os.getpid(), number)
    os._exit(number)


def _say(text: str) -> None:
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {node}: warm ranks: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
