"""The record of what agents have spent: one append-only file beside the runs, for all servers of a user's project.

An entry `planned` is on disk before sbatch runs, and counts at once. `submitted`, `dropped` and `ended` follow it. A reader of the
file holds its lock, and first settles entries that a killed server left open. So a budget holds for two servers at once, and is
right after `kill -9`.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from kit.errors import ConfigError, Fault, RunError
from kit.files import json_lines, untrusted_files
from kit.files.owning_process import Owner
from kit.mcp.cost import Cost
from kit.mcp.limits import Limits
from kit.submission.prepare_run import Prepared

_DAY_S = 24 * 3600.0
_LOCK_S = 60.0
_MOST_BYTES = 32 << 20
State = Literal["planned", "submitted", "dropped", "ended"]


@dataclass(frozen=True, kw_only=True)
class Spent:
    """One run of an agent. at: seconds since the epoch. node_hours, gpu_hours: at most, or those that were used once it has ended.

    state: planned, until it is known whether Slurm has taken it; dropped if it has not. owner: the server.
    """

    run: str
    plan: str
    run_dir: str
    cluster: str
    at: float
    nodes: int
    node_hours: float
    gpu_hours: float
    owner: str
    state: State = "planned"
    job_id: str = ""

    @property
    def is_under_way(self) -> bool:
        """Whether its server is alive, or may be, and so will settle the entry itself."""
        owner = Owner.parse(self.owner)
        return self.state == "planned" and (owner is None or owner.alive() is not False)


def planned(ready: Prepared, plan: str, cost: Cost) -> Spent:
    """The entry of a run that this process submits next."""
    made = ready.plan
    return Spent(
        run=made.run_id, plan=plan, run_dir=str(ready.folder), cluster=made.cluster, at=time.time(), nodes=cost.nodes,
        node_hours=cost.node_hours, gpu_hours=cost.gpu_hours, owner=str(Owner.current()),
    )  # fmt: skip


# What became of an open or running entry: the entry as it is now.
Settle = Callable[[Spent], Spent]


class SpendingRecord:
    """The file. Each method holds its lock."""

    def __init__(self, runs_dir: Path, *, settle: Settle) -> None:
        self.path = runs_dir / f".mcp-spent-{os.geteuid()}.jsonl"
        self._settle = settle

    def reserve(self, entry: Spent, limits: Limits, *, file: Path) -> None:
        """Record a run that is submitted next. ConfigError, and no record, if it exceeds what is left. file: of the limits."""
        with self._locked():
            if found := over(self._settled(), entry, limits, now=entry.at):
                raise ConfigError.of(*found, file=str(file))
            self._append(entry)

    def settle(self, run: str, state: State, *, job_id: str = "") -> None:
        """Record what became of a run."""
        with self._locked():
            known = {one.run: one for one in self._read()}
            if run in known:
                self._append(replace(known[run], state=state, job_id=job_id))

    def entries(self) -> list[Spent]:
        """All entries, settled, oldest first."""
        with self._locked():
            return self._settled()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(f"{self.path}.lock", timeout=_LOCK_S, mode=0o600)
        try:
            with lock:
                yield
        except Timeout:
            problem = f"{lock.lock_file}: another process has held this lock for {_LOCK_S:.0f} s"
            raise RunError(problem, hint="end the other `kit mcp`, or wait") from None

    def _settled(self) -> list[Spent]:
        entries = []
        for one in self._read():
            now = one
            if one.state in {"planned", "submitted"} and not one.is_under_way:
                now = self._settle(one)
                if now != one:
                    self._append(now)
            entries.append(now)
        return entries

    def _read(self) -> list[Spent]:
        """The newest line of each run. RunError if the file is not this user's alone: then anybody could have written it."""
        try:
            seen = self.path.lstat()
        except FileNotFoundError:
            return []
        if not stat.S_ISREG(seen.st_mode) or seen.st_uid != os.geteuid() or seen.st_mode & 0o022:
            problem = f"{self.path}: not a file that only you may write"
            raise RunError(problem, hint=f"look at it, then: chmod 600 {self.path}")
        newest: dict[str, Spent] = {}
        for line in json_lines.parse_records(untrusted_files.read_bytes(self.path, most=_MOST_BYTES)):
            try:
                one = Spent(**line)
            except TypeError:
                continue
            newest[one.run] = one
        return [*newest.values()]

    def _append(self, entry: Spent) -> None:
        """Add a line, on disk before this returns. A line that a kill left incomplete is ended first."""
        handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(handle).st_size
            torn = size and os.pread(handle, 1, size - 1) != b"\n"
            os.write(handle, (b"\n" if torn else b"") + json.dumps(asdict(entry)).encode() + b"\n")
            os.fsync(handle)
        finally:
            os.close(handle)


def totals(known: Sequence[Spent], *, now: float) -> dict[str, dict[str, float]]:
    """GPU-hours and node-hours of the last 24 hours, and in all. Runs that Slurm has not taken do not count."""
    count = [one for one in known if one.state != "dropped"]
    day = [one for one in count if one.at > now - _DAY_S]
    return {
        name: {
            "gpu_hours": round(sum(one.gpu_hours for one in those), 4),
            "node_hours": round(sum(one.node_hours for one in those), 4),
        }
        for name, those in (("last_24_hours", day), ("in_all", count))
    }


def over(known: Sequence[Spent], cost: Cost | Spent, limits: Limits, *, now: float) -> list[Fault]:
    """The budgets that a run would exceed."""
    spent = totals(known, now=now)
    faults = []
    for unit, asked in (("gpu_hours", cost.gpu_hours), ("node_hours", cost.node_hours)):
        for span, suffix in (("last_24_hours", "per_day"), ("in_all", "in_all")):
            limit, used = getattr(limits, f"{unit}_{suffix}"), spent[span][unit]
            if limit is not None and used + asked > limit:
                problem = (
                    f"the run may use {asked:.6g} {unit.replace('_', '-')}, and {max(0.0, limit - used):.6g} are left: "
                    f"{used:.6g} of {limit:.6g} {'in 24 hours' if suffix == 'per_day' else 'in all'} are spent"
                )
                faults.append(Fault(key=f"{unit}_{suffix}", problem=problem, hint="fewer nodes or less resources.time"))
    return faults
