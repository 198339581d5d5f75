"""Imports modules once on a node and forks the node's ranks from that process: `[retry] warm`.

    python warm_ranks.py NAME MODULE[,MODULE…] PYTHON PROGRAM…     NAME: of an abstract Unix socket

worker.sh starts this in step kit-warm, with the words of the ranks' program: a module may lie beside the script.

rank.sh starts warm_client.py in place of a rank's program. The client sends its arguments, environment, folder, limits and open
files. This process forks; the child becomes the program, as `python SCRIPT` or `python -m MODULE` would have started it, and the
client gets its exit code or signal. The child has the client's environment in /proc, so that signal.sh, evidence.sh and the monitor
find it as the rank's program. A request that a child could not serve exactly is refused with the reason, and the client becomes the
program itself. When a client is gone, its rank is killed; after the last rank of the node, so is all that the ranks have left.

A rank that fails is not reported to its client at once: the batch script may order that the ranks of all nodes end and are forked
again, in the same step (warm_held.py). Works with any Python from 3.8, and needs no installation.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import socket
import struct
import sys
import time

from warm_child import Areas, Closes, become
from warm_held import Held, HeldRank
from warm_imports import fork_problem, load
from warm_meeting import wait_for_rank_0
from warm_program import run, set_path0
from warm_request import RefusalError, StartRequest, check, receive

# A signal that Slurm sends to every step reaches a rank directly, and through its client. The second is dropped.
_SAME_SIGNAL_S, _FORWARD_AFTER_S = 5.0, 1.0
# Seconds between looks at the parent process, and for a client to send its request.
_LOOK_S, _REQUEST_S = 5.0, 10.0
_SUBREAPER = 36
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class WarmRanks:
    """The process from which ranks are forked. name: of its abstract socket; modules: imported before the first fork."""

    def __init__(self, name: str, modules: list[str]) -> None:
        self._areas = Areas()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._parent = os.getppid()
        self._pid = os.getpid()
        self._ending = False
        self._own: dict[int, float] = {}
        # Those that run, by their process; and all whose clients wait for their end.
        self._ranks: dict[int, HeldRank] = {}
        self._known: set[HeldRank] = set()
        self._held = Held(self._ranks, self._forget)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind("\0" + name)
        self._listener.listen(1024)
        self._woken, self._wakes = socket.socketpair()
        for end in (self._listener, self._woken, self._wakes):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        for number in (*_SIGNALS, signal.SIGCHLD):
            signal.signal(number, _ignore)
        # Children from before this program: the FUSE daemons of Pyxis and Enroot, which the container's files come from.
        self._before = {*_descendants(self._pid)}
        # Processes that a rank leaves behind become children of this one, which ends them.
        self._libc.prctl(_SUBREAPER, 1, 0, 0, 0)
        self._broken = load(modules) or fork_problem()
        _say(self._broken or f"{', '.join(modules)} imported; ranks are forked from here")

    def serve(self) -> StartRequest:
        """Serve requests until the step ends. Returns only in a forked child, with its request."""
        self._selector = selectors.DefaultSelector()
        for one in (self._listener, self._woken, self._held.orders):
            if one is not None:
                self._selector.register(one, selectors.EVENT_READ)
        while True:
            if self._ending and not self._ranks and not self._held:
                os._exit(0)
            for key, _ in self._selector.select(self._pause()):
                request = self._handle(key)
                if request is not None:
                    return request
            self._pass_on()
            self._held.settle()
            if os.getppid() != self._parent:
                # Its slurmstepd is gone. Slurm would never end this process, nor the ranks.
                self._kill_all()
                os._exit(1)

    def _handle(self, key: selectors.SelectorKey) -> StartRequest | None:
        """Handle an event. Returns a request only in a forked child."""
        if key.fileobj is self._listener:
            return self._accept()
        if key.fileobj is self._woken:
            self._on_signals()
            return None
        if key.fileobj == self._held.orders:
            return self._obey()
        rank: HeldRank = key.data
        if rank.link is not None and key.fileobj is rank.link:
            if not self._held.hear(rank, rank.link):
                self._selector.unregister(key.fileobj)
            self._held.settle()
        elif rank.connection is not None and key.fileobj is rank.connection:
            self._hear(rank, rank.connection)
        # Else it is closed since this look began: the ends of several ranks came at once.
        return None

    def _pause(self) -> float:
        due = [at + _FORWARD_AFTER_S - time.monotonic() for rank in self._ranks.values() for _, at in rank.passed]
        held = self._held.pause()
        return max(0.0, min([_LOOK_S, *due, *([] if held is None else [held])]))

    def _accept(self) -> StartRequest | None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return None
        try:
            uid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
            if uid != os.geteuid():
                raise OSError("another user")
            connection.settimeout(_REQUEST_S)
            request = receive(connection)
        except (OSError, ValueError):
            # The client is gone, or the request is not one of warm_client.py.
            connection.close()
            return None
        rank = HeldRank(connection, request)
        try:
            if self._broken or self._ending:
                raise RefusalError(self._broken or "the step is ending")
            check(request, self._areas.env, self._areas.room)
            if self._fork(rank):
                return rank.request
        except (RefusalError, OSError) as reason:
            rank.tell(f"refused {reason}")
            self._held.refused(rank, reason)
            connection.close()
            for fd in request["fds"]:
                os.close(fd)
            return None
        self._known.add(rank)
        self._selector.register(connection, selectors.EVENT_READ, rank)
        rank.tell("started")
        return None

    def _obey(self) -> StartRequest | None:
        """Do what the batch script orders. Returns a request only in a forked child."""
        again = self._held.read_orders()
        if again is None:
            if self._held.orders is not None:
                self._selector.unregister(self._held.orders)
            self._held.release()
        for rank in again or ():
            try:
                if self._fork(rank):
                    return rank.request
            except OSError:
                rank.end = ("killed", int(signal.SIGKILL))
                self._held.ended(rank, signalled=False)
        return None

    def _fork(self, rank: HeldRank) -> bool:
        """Fork a rank. True only in the child, which is then what the rank's request asks for."""
        request = rank.request
        kept, own = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) if _keeps(request) else (None, None)
        # What is not written yet, the child would write once more.
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # No signal may find the child with this process's handlers.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
        except OSError:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            for end in (kept, own):
                if end is not None:
                    end.close()
            raise
        if pid == 0:
            try:
                self._become(rank, kept, own)
            except BaseException as error:  # noqa: BLE001 - a child must never serve
                _say(f"the rank cannot be started: {error!r}")
                os._exit(1)
            return True
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        rank.pid, rank.keeps = pid, False
        self._ranks[pid] = rank
        if kept is not None and own is not None:
            own.close()
            kept.setblocking(False)
            rank.link = kept
            self._selector.register(kept, selectors.EVENT_READ, rank)
        self._held.forked(rank)
        return False

    def _become(self, rank: HeldRank, kept: socket.socket | None, own: socket.socket | None) -> None:
        request, known = rank.request, self._known | {rank}
        if own is not None:
            request["env"]["KIT_KEEP_FD"] = str(own.detach())
        closed: list[int | Closes | None] = [self._listener, self._woken, self._wakes, kept, *self._held.files]
        closed += [end for one in known for end in (one.connection, one.link, *one.request["fds"])]
        self._selector.close()
        become(request, self._areas, self._pid, self._libc, closed=[one for one in closed if one is not None])
        if rank.is_again:
            _say(f"rank {rank.number} is forked again, restart {request['env'].get('KIT_RESTART_COUNT', '')}")
            wait_for_rank_0(request["env"])

    def _on_signals(self) -> None:
        try:
            numbers = self._woken.recv(4096)
        except BlockingIOError:
            return
        for number in {*numbers} & {*_SIGNALS}:
            self._own[number] = time.monotonic()
            if number in (signal.SIGTERM, signal.SIGINT):
                self._ending = True
            # The client tells rank.sh that its program was told to end.
            for rank in self._ranks.values():
                rank.tell(f"signalled {number}")
            self._held.release()
        self._reap()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            rank = self._ranks.pop(pid, None)
            if rank is not None:
                killed = os.WIFSIGNALED(status)
                rank.end = ("killed", os.WTERMSIG(status)) if killed else ("exit", os.WEXITSTATUS(status))
                if rank.link is not None:
                    self._selector.unregister(rank.link)
                    rank.link.close()
                    rank.link = None
                self._held.ended(rank, signalled=bool(self._own))
        if not self._ranks:
            self._kill_all()
        self._held.settle()

    def _hear(self, rank: HeldRank, connection: socket.socket) -> None:
        """The client of this rank passes on a signal, or is gone."""
        if self._ranks.get(rank.pid) is not rank:
            self._held.hear_client(rank, connection)
            return
        try:
            text = connection.recv(4096).decode()
        except OSError:
            text = ""
        if text:
            rank.passed += [(int(word), time.monotonic()) for word in text.split()]
        else:
            self._drop(rank)
            os.kill(rank.pid, signal.SIGKILL)

    def _forget(self, rank: HeldRank) -> None:
        self._known.discard(rank)
        self._drop(rank)

    def _drop(self, rank: HeldRank) -> None:
        if rank.connection is not None:
            self._selector.unregister(rank.connection)
            rank.connection.close()
            rank.connection = None

    def _pass_on(self) -> None:
        for pid, rank in self._ranks.items():
            for number, at in [one for one in rank.passed if time.monotonic() - one[1] >= _FORWARD_AFTER_S]:
                rank.passed.remove((number, at))
                if abs(self._own.get(number, float("-inf")) - at) > _SAME_SIGNAL_S:
                    os.kill(pid, number)

    def _kill_all(self) -> None:
        """Kill what ranks have left, until there is nothing. What the kernel does not let go of is left after two seconds."""
        for _ in range(100):
            left = {*_descendants(self._pid)} - self._before
            if not left:
                return
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    continue
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            time.sleep(0.02)


def _descendants(pid: int) -> list[int]:
    """Numbers of the processes below this one, from /proc, which may change meanwhile."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                children.setdefault(int(file.read().rpartition(b")")[2].split()[1]), []).append(int(name))
        except (OSError, ValueError, IndexError):
            continue
    descendants: list[int] = []
    ahead = [pid]
    while ahead:
        below = children.get(ahead.pop(), [])
        descendants += below
        ahead += below
    return descendants


def _keeps(request: StartRequest) -> bool:
    return bool(request["env"].get("KIT_KEEP"))


def _ignore(*_: object) -> None:
    return


def _say(text: str) -> None:
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {node}: warm ranks: {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Serve, and in each child run what its client asked for. The child leaves by the end of this file, as a program does."""
    name, modules, *program = sys.argv[1:]
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    set_path0(program)
    begins = list(sys.path)
    request = WarmRanks(name, modules.split(",")).serve()
    if sys.path and begins and sys.path[0] == begins[0] and not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    run(request["argv"])


if __name__ == "__main__":
    main()
