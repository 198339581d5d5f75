"""Orders of the batch script for the ranks of a warm process, and reports to it: see warm_ranks.sh.

Orders come as lines on standard input, which srun copies to the warm processes of all nodes. Words are separated by tabs. START is
the number of an attempt.

    stop START HOW                   end its ranks; with `[retry] keep`, those that wait for it live on. If HOW is "failed", the
                                     others get half a second to end by themselves, and to say why
    again START NAME=VALUE…          start the same ranks again, with these variables
    release START                    let the ranks' steps see how they ended

Reports go to standard output, which srun brings to the batch script: `kit-warm WORD START NUMBER [HOW]`.

    forked START RANK                a rank runs
    refused START RANK WHY           a rank imports by itself
    ended START RANK HOW             a rank ended, and its step does not know yet; HOW is "killed" after KILL, else "failed"
    done START RANK                  a rank ended, and its step knows
    stopped START COUNT              after `stop`: no rank of this node runs; so many can start again
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable

from warm_request import StartRequest

# Seconds in which a rank that lives on must have left what it did, and for which an ended rank waits for an order.
_LEAVE_S, _HOLD_S = 5.0, 60.0
# How a rank ends that did nothing wrong itself.
_BY_KILL = ("killed", int(signal.SIGKILL))
# Seconds in which ranks may end by themselves after another one has failed. Their collectives fail in milliseconds, and then
# kit_recorder.py prints what they had called.
_LAST_WORDS_S = 0.5


class HeldRank:
    """A rank of this node: its client's connection, None once the client is gone, and what its program is started from.

    passed: signals that the client passed on, with their times. end: a word and a number once the program has ended. link: to
    kit_keep in the program, with `[retry] keep`.
    """

    def __init__(self, connection: socket.socket, request: StartRequest) -> None:
        self.connection: socket.socket | None = connection
        self.request = request
        self.passed: list[tuple[int, float]] = []
        self.pid = 0
        self._first = self.start
        self.end: tuple[str, int] | None = None
        self.ended_at = 0.0
        self.stopped = False
        self.link: socket.socket | None = None
        # Of kit_keep: whether the program can live on, since when it is asked to, and whether it waits.
        self.keeps, self.asked_at, self.waits = False, 0.0, False

    @property
    def start(self) -> str:
        """The number of its attempt."""
        return self.request["env"].get("KIT_ATTEMPT", "")

    @property
    def is_again(self) -> bool:
        """Whether its program has been started again in the same step."""
        return self.start != self._first

    @property
    def number(self) -> str:
        """Its rank."""
        return self.request["env"].get("RANK", "-")

    @property
    def ending(self) -> tuple[str, int]:
        """How it ended. Only asked of a rank that has."""
        assert self.end is not None, "the rank runs"
        return self.end

    @property
    def code(self) -> int:
        """Its exit code, as a shell reports it."""
        word, number = self.ending
        return number + 128 if word == "killed" else number

    def tell(self, text: str) -> None:
        """Send a line to the client. Whether the client is gone is seen by reading."""
        try:
            if self.connection is not None:
                self.connection.sendall(f"{text}\n".encode())
        except OSError:
            return

    def change(self, changes: dict[str, str]) -> None:
        """The variables of the next start."""
        env = self.request["env"]
        before = env.get("KIT_FAILURES", "")
        env.update(changes)
        if before and "TORCHELASTIC_ERROR_FILE" in env:
            env["TORCHELASTIC_ERROR_FILE"] = env["TORCHELASTIC_ERROR_FILE"].replace(before, env["KIT_FAILURES"])
        if "KIT_MASTER_ADDR" in changes:
            env.update(MASTER_ADDR=changes["KIT_MASTER_ADDR"], MASTER_PORT=changes["KIT_MASTER_PORT"])
        # kit_rank counts from here the time of the rank's start.
        env["KIT_WORKER_BEGAN"] = f"{time.time():.6f}"
        self.end, self.stopped, self.asked_at, self.waits = None, False, 0.0, False

    def record(self) -> None:
        """Record a failure at its time, as lib/failures.sh does. rank.sh keeps this record."""
        env = self.request["env"]
        folder = f"{env.get('KIT_RUN_DIR', '')}/state/{env.get('KIT_FAILURES', '')}"
        node = env.get("SLURMD_NODENAME") or socket.gethostname()
        # Its parent lives, so Slurm does not kill the step.
        name = f"rank-{self.number}.{self.code}" + (".alone" if self.end == _BY_KILL else "")
        try:
            with open(f"{folder}/{name}", "x", encoding="utf-8") as file:  # noqa: PTH123
                file.write(f"{time.time():.6f} {self.number} {self.code} {node} {env.get('KIT_ROLE', '')}\n")
        except OSError:
            # A full disk. rank.sh tries it again.
            return


class Held:
    """The ranks whose end their step does not know yet, so that they can start again in it.

    ranks: those that run, by their process. forget: called for a rank whose step knows its end.
    """

    def __init__(self, ranks: dict[int, HeldRank], forget: Callable[[HeldRank], None]) -> None:
        self._ranks, self._forget = ranks, forget
        self._ended: list[HeldRank] = []
        self._stopping: str | None = None
        self._kills_at: float | None = None
        self._released: set[str] = set()
        self._text = b""
        self._reports: int | None = None
        self.orders: int | None = None
        if os.environ.get("KIT_WARM_ORDERS"):
            self.orders, self._reports = os.dup(0), os.dup(1)
            os.dup2(2, 1)
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.close(null)
            os.set_blocking(self.orders, False)

    def __bool__(self) -> bool:
        return bool(self._ended)

    @property
    def files(self) -> list[int]:
        """Open files that no rank must have."""
        return [one for one in (self.orders, self._reports) if one is not None]

    def pause(self) -> float | None:
        """Seconds until something is due; None where nothing is."""
        asked = [rank.asked_at + _LEAVE_S for rank in self._ranks.values() if rank.asked_at and not rank.waits]
        due = asked + [rank.ended_at + _HOLD_S for rank in self._ended]
        due += [] if self._kills_at is None else [self._kills_at]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def forked(self, rank: HeldRank) -> None:
        """A rank runs."""
        self._report("forked", rank.start, rank.number)

    def refused(self, rank: HeldRank, reason: Exception) -> None:
        """A rank starts by itself, for this reason."""
        self._report("refused", rank.start, rank.number, " ".join(str(reason).split()))

    def ended(self, rank: HeldRank, *, signalled: bool) -> None:
        """A rank has ended. signalled: the ranks were told to end, so that this is no failure."""
        once = signalled or rank.start in self._released or rank.request["env"].get("KIT_WARM_ONCE")
        well = rank.end == ("exit", 0) and not rank.stopped
        if once or well or self.orders is None or rank.connection is None:
            self._end(rank)
            return
        rank.ended_at = time.monotonic()
        self._ended.append(rank)
        if not rank.stopped:
            rank.record()
            self._report("ended", rank.start, rank.number, "killed" if rank.end == _BY_KILL else "failed")

    def settle(self) -> None:
        """Kill what did not leave in time, and tell once that no rank runs any more."""
        now = time.monotonic()
        if self._kills_at is not None and now >= self._kills_at:
            self._kills_at = None
            for rank in self._of(self._stopping):
                if not rank.asked_at:
                    rank.stopped = True
                    _kill(rank.pid)
        for pid, rank in self._ranks.items():
            if rank.asked_at and not rank.waits and now - rank.asked_at > _LEAVE_S:
                _kill(pid)
        if any(now - rank.ended_at > _HOLD_S for rank in self._ended):
            self.release()
        if self._stopping is None or any(not rank.waits for rank in self._of(self._stopping)):
            return
        kept = [*self._of(self._stopping), *(rank for rank in self._ended if rank.start == self._stopping)]
        self._report("stopped", self._stopping, len(kept))
        self._stopping = self._kills_at = None

    def read_orders(self) -> list[HeldRank] | None:
        """Read orders. Returns the ranks to start again; None once the batch script is gone."""
        if self.orders is None:
            return None
        try:
            more = os.read(self.orders, 65536)
        except BlockingIOError:
            return []
        except OSError:
            more = b""
        if not more:
            return None
        *lines, self._text = (self._text + more).split(b"\n")
        return [rank for line in lines for rank in self._order(*line.decode().split("\t"))]

    def release(self) -> None:
        """Let the steps see all ends. Ranks that live on are killed."""
        self._released |= {rank.start for rank in self._ended}
        for pid, rank in self._ranks.items():
            if rank.asked_at:
                self._released.add(rank.start)
                _kill(pid)
        ended, self._ended = self._ended, []
        for rank in ended:
            self._end(rank)

    def hear(self, rank: HeldRank, link: socket.socket) -> bool:
        """kit_keep in a rank says over its link what it can do. False when the link is closed."""
        try:
            text = link.recv(256).decode()
        except OSError:
            text = ""
        if not text:
            link.close()
            rank.link, rank.keeps = None, False
            return False
        rank.keeps = text in ("ready", "waits")
        rank.waits = text == "waits"
        return True

    def hear_client(self, rank: HeldRank, connection: socket.socket) -> None:
        """The client of an ended rank passes on a signal, or is gone: there will be no other start."""
        if rank not in self._ended:
            return
        try:
            text = connection.recv(4096)
        except OSError:
            text = b""
        if text:
            self.release()
        else:
            self._ended.remove(rank)
            self._end(rank)

    def _order(self, word: str, start: str, *changes: str) -> list[HeldRank]:
        if word == "stop":
            self._stopping = start
            self._kills_at = time.monotonic() + (_LAST_WORDS_S if changes == ("failed",) else 0.0)
            for rank in self._of(start):
                if rank.keeps and _sent(rank.link, "leave"):
                    rank.stopped, rank.asked_at = True, time.monotonic()
            self.settle()
        elif word == "release":
            self._released.add(start)
            self.release()
        elif word == "again":
            return self._again(start, dict(pair.split("=", 1) for pair in changes))
        return []

    def _again(self, start: str, changes: dict[str, str]) -> list[HeldRank]:
        ended = [rank for rank in self._ended if rank.start == start]
        self._ended = [rank for rank in self._ended if rank.start != start]
        for rank in self._of(start):
            rank.change(changes)
            text = "\n".join(f"{name}={value}" for name, value in rank.request["env"].items() if name in _KEPT)
            if _sent(rank.link, f"go\n{text}"):
                self.forked(rank)
            else:
                _kill(rank.pid)
        for rank in ended:
            rank.change(changes)
        return ended

    def _of(self, start: str | None) -> list[HeldRank]:
        return [rank for rank in self._ranks.values() if rank.start == start]

    def _end(self, rank: HeldRank) -> None:
        word, number = rank.ending
        rank.tell(f"{word} {number}")
        self._report("done", rank.start, rank.number)
        for fd in rank.request["fds"]:
            os.close(fd)
        rank.request["fds"] = []
        self._forget(rank)

    def _report(self, *words: object) -> None:
        if self._reports is not None:
            try:
                os.write(self._reports, f"kit-warm {' '.join(map(str, words))}\n".encode())
            except OSError:
                return


# Variables that differ between two starts, which a program that lives on gets.
_KEPT = frozenset(
    {"MASTER_ADDR", "MASTER_PORT", "KIT_MASTER_ADDR", "KIT_MASTER_PORT", "KIT_RESTART_COUNT", "KIT_ATTEMPT"}
    | {"KIT_FAILURES", "KIT_WORKER_BEGAN", "TORCHELASTIC_ERROR_FILE"}
)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return


def _sent(link: socket.socket | None, text: str) -> bool:
    if link is None:
        return False
    try:
        link.sendall(text.encode())
    except OSError:
        return False
    return True
