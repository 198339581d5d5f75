"""Records for a ledger: the data of the batch script, the monitors and the program. Times are seconds since the epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Rank = tuple[str, int]
"""A rank: its role ('' for a plain job) and its number."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """One line of events.jsonl. values: its other keys, as text."""

    at: float
    name: str
    job_id: int
    attempt: int
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RankProcess:
    """One process of a rank, from its last report (kit_rank).

    looked: the time when its node's monitor read that report. step: steps done. first: steps done when its loop began; None before
    that. phase, since: the current phase and its start. usual: seconds between two reports of a step; 0 before the second. began,
    ended: start and end of the process; ended is 0 if it reported no end. worker: the start of the node's task; 0 if unknown.
    spent: seconds in each phase of kit_rank, up to `since`.
    """

    role: str
    rank: int
    node: str
    attempt: int
    looked: float
    step: int
    phase: str
    since: float
    usual: float
    began: float
    worker: float
    ended: float
    first: int | None
    spent: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A rank that recorded its own end.

    alone: the attempt continued. Its role was restarted or given up without the others, as with replica groups, or torchrun
    restarted the ranks.
    """

    role: str
    rank: int
    attempt: int
    at: float
    alone: bool = False


@dataclass(frozen=True, kw_only=True)
class Reported:
    """Rank 0's metrics.jsonl of an attempt, for programs without phases.

    began: start of the training loop. first: its first record of a step. last: its last record. save, evaluation: seconds.
    """

    attempt: int
    began: float
    first: float
    last: float
    save: float
    evaluation: float


@dataclass(frozen=True, kw_only=True)
class Records:
    """All records of one run.

    submitted: 0 if unknown. now: the current time for a running run; 0 for an ended one. ended: the time when a job that never
    started was cancelled, else 0. closed: the time when all steps of an ended job had gone, 0 if unknown. world: number of ranks
    of each role. gpus: of the whole job. ranks_per_node: on one node.
    """

    run_id: str
    submitted: float
    now: float = 0.0
    ended: float = 0.0
    closed: float = 0.0
    world: Mapping[str, int]
    ranks_per_node: int = 1
    gpus: int = 0
    events: tuple[Event, ...] = ()
    processes: tuple[RankProcess, ...] = ()
    failures: tuple[Failure, ...] = ()
    reported: tuple[Reported, ...] = ()

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """All ranks of all roles, in order."""
        return tuple((role, rank) for role, size in self.world.items() for rank in range(size))
