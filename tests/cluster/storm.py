"""Faults for a job of replica groups, drawn under a seed, and what must hold afterwards. The soak and the tests share it."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kit.files import json_lines
from kit.record import metrics
from tests.cluster.lab import Lab, Process

# Longest a fault may leave a group or the lighthouse stopped, seconds.
STOPPED_S = 6.0


@dataclass
class Storm:
    """Draws faults and does them. `done` tells what was done, in order."""

    lab: Lab
    run: Path
    draw: random.Random
    groups: int
    done: list[str] = field(default_factory=list)

    def blow(self, faults: int, *, pause: tuple[float, float]) -> None:
        """So many faults, `pause` seconds apart, or fewer where the job ends before."""
        self.lab.wait(lambda: self._reached() >= 2, self.run)
        # Every kind once, in an order that the seed says, before any comes twice.
        kinds = [kind for _ in range(faults // len(KINDS) + 1) for kind in self.draw.sample(KINDS, len(KINDS))]
        for kind in kinds[:faults]:
            if self._ended():
                return
            kind(self)
            time.sleep(self.draw.uniform(*pause))

    def kill_group(self) -> None:
        """kill -9 of a group's ranks, or of their torchrun."""
        group = self.draw.randrange(self.groups)
        what = self.draw.choice(("ranks", "torchrun"))
        self._signal(f"kill -9 of group {group}'s {what}", self._of_group(group, what), signal.SIGKILL)

    def kill_first_group(self) -> None:
        """Number 0, which has no special part."""
        self._signal("kill -9 of group 0's ranks", self._of_group(0, "ranks"), signal.SIGKILL)

    def stop_group(self) -> None:
        """SIGSTOP for a while: its connections stay open, its heartbeats end."""
        group = self.draw.randrange(self.groups)
        self._pause(f"group {group}", self._of_group(group, "ranks"))

    def kill_lighthouse(self) -> None:
        """It comes back on the same address."""
        self._signal("kill -9 of the lighthouse", self._lighthouse(), signal.SIGKILL)

    def stop_lighthouse(self) -> None:
        """It listens, and does not answer."""
        self._pause("the lighthouse", self._lighthouse())

    def kill_node(self) -> None:
        """All that the job has on one of its nodes, but what Slurm has there: as if the kernel had killed it for memory."""
        node = self.draw.choice([one.name for one in self.lab.cluster.nodes][1:])
        inside = {process.pid for process in self.lab.node_processes(node)}
        found = [p for p in self.lab.processes(self.run) if p.pid in inside and b"REPLICA_GROUP_ID=" in p.environ]
        self._signal(f"kill -9 of all groups on {node}", found, signal.SIGKILL)

    def _of_group(self, group: int, what: str) -> list[Process]:
        own = f"REPLICA_GROUP_ID={group}\0".encode()
        mine = [p for p in self.lab.processes(self.run) if own in p.environ]
        return [p for p in mine if is_rank(p)] if what == "ranks" else [p for p in mine if is_torchrun(p)]

    def _lighthouse(self) -> list[Process]:
        return [p for p in self.lab.processes(self.run) if is_lighthouse(p)]

    def _pause(self, what: str, processes: list[Process]) -> None:
        seconds = self.draw.uniform(1, STOPPED_S)
        self._signal(f"SIGSTOP of {what} for {seconds:.1f} s", processes, signal.SIGSTOP)
        time.sleep(seconds)
        self._send(processes, signal.SIGCONT)

    def _signal(self, what: str, processes: Sequence[Process], number: signal.Signals) -> None:
        self.done.append(f"{what} at outer step {self._reached()}" + ("" if processes else ": not running"))
        self._send(processes, number)

    @staticmethod
    def _send(processes: Sequence[Process], number: signal.Signals) -> None:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)

    def _reached(self) -> int:
        quorum = metrics.quorum(self.run)
        return quorum.outer_step if quorum else 0

    def _ended(self) -> bool:
        return self.lab.job(self.run)["JobState"] != "RUNNING"


KINDS: list[Callable[[Storm], None]] = [
    Storm.kill_group,
    Storm.kill_first_group,
    Storm.stop_group,
    Storm.kill_lighthouse,
    Storm.stop_lighthouse,
    Storm.kill_node,
]


def is_rank(process: Process) -> bool:
    """The training program itself, not the shells and containers around it."""
    return bool(re.search(r"python3?[\d.]* .*code/train\.py", process.line)) and not is_torchrun(process)


def is_torchrun(process: Process) -> bool:
    """torchrun itself, by its name or as a module."""
    return bool(re.match(r"\S*python\S* .*(bin/torchrun|torch\.distributed\.run)", process.line))


def is_lighthouse(process: Process) -> bool:
    """The lighthouse itself."""
    return bool(re.match(r"\S*python\S* \S*torchft_lighthouse", process.line))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the groups recorded. wrong: what should have held and did not."""

    test_loss: float
    outer_steps: int
    averaged: float
    seconds: float
    wrong: tuple[str, ...]


def outcome(run: Path, groups: int) -> Outcome:
    """Read the groups' records: one truth at each outer step, none done twice, the same parameters at the end."""
    own = {group: _records(run / f"replica-{group}") for group in range(groups)}
    outers = {group: [r for r in records if r["kind"] == "outer"] for group, records in own.items()}
    finals = [records[-1] for records in own.values() if records and records[-1]["kind"] == "final"]
    wrong = [f"{len(finals)} of {groups} groups came to the end"] if len(finals) < groups else []
    if len({final["sha256"] for final in finals}) > 1:
        wrong.append("the groups ended with different parameters")
    for group, records in outers.items():
        steps = [record["outer_step"] for record in records]
        if steps != sorted(set(steps)):
            wrong.append(f"group {group} went back: {steps}")
    by_step: dict[int, dict[str, float]] = {}
    for record in (record for records in outers.values() for record in records):
        by_step.setdefault(record["outer_step"], {})[record["checksum"]] = record["averaged"]
    wrong += [f"outer step {step} has {len(sums)} results" for step, sums in sorted(by_step.items()) if len(sums) > 1]
    times = [_seconds(record) for records in outers.values() for record in records]
    return Outcome(
        test_loss=finals[0]["test_loss"] if finals else float("nan"),
        outer_steps=len(by_step),
        averaged=sum(next(iter(sums.values())) for sums in by_step.values()) / max(1, len(by_step)) / groups,
        seconds=max(times, default=0.0) - min(times, default=0.0),
        wrong=tuple(wrong),
    )


def _records(folder: Path) -> list[json_lines.Record]:
    return metrics.records(folder)


def _seconds(record: dict[str, Any]) -> float:
    from datetime import datetime

    return datetime.fromisoformat(record["time"]).timestamp()
