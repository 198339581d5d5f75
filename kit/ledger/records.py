"""Records that a ledger is made of: what the batch script, the monitors and the program wrote, in seconds since the epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Rank = tuple[str, int]
"""A rank by its role ('' for a plain job) and number."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """One line of events.jsonl. values: its further keys, as text."""

    at: float
    name: str
    job_id: int
    attempt: int
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RankProcess:
    """One process of a rank, by its last report (kit_rank).

    looked: when its node's monitor read that report. step: steps done; first: those done when its loop began, None before that.
    phase, since: what it does, since when. usual: seconds between two reports of a step, 0 before the second. began, ended: of the
    process, ended 0 where it reported no end. worker: when the node's task began, 0 where that is not known. spent: seconds in each
    phase of kit_rank, up to `since`.
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

    alone: its role was started again or given up without the others, as replica groups are; the attempt continued.
    """

    role: str
    rank: int
    attempt: int
    at: float
    alone: bool = False


@dataclass(frozen=True, kw_only=True)
class Reported:
    """What rank 0 reported of an attempt in metrics.jsonl, for programs without phases.

    began: of the training loop. first: of its first record of a step. last: of any. save, evaluation: seconds.
    """

    attempt: int
    began: float
    first: float
    last: float
    save: float
    evaluation: float


@dataclass(frozen=True, kw_only=True)
class Records:
    """One run.

    submitted: 0 where it is not known. now: until when it is accounted, for a run that lives; 0 for one that has ended. ended: when
    a job that never began was cancelled, else 0. world: ranks of each role. gpus: of the whole job. ranks_per_node: of a node.
    """

    run_id: str
    submitted: float
    now: float = 0.0
    ended: float = 0.0
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
