"""Snapshot of the queue from one sinfo and one squeue: nodes, running jobs with their nodes and ends, and waiting jobs."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kit.errors import SlurmError, ToolError
from kit.slurm import run_local_or_ssh, tolerant_reader
from kit.slurm.short_forms import count_gpus, expand_nodes

_TIMEOUT_S = 20.0
# sinfo(1), squeue(1): each field gets its own suffix, since names and lists may have any length.
_NODE = (
    "NodeHost", "Partition", "StateLong", "CPUsState", "Memory", "Gres", "PriorityTier", "Features", "Time", "Size",
)  # fmt: skip
_JOB = (
    "JobArrayID", "StateCompact", "Reason", "PriorityLong", "NumNodes", "TimeLimit", "TimeUsed", "EndTime", "tres-alloc",
    "tres-per-node", "NodeList", "Partition", "OverSubscribe",
)  # fmt: skip
# Values of StateLong, without the signs after it: '*' no answer, '$' maintenance.
_IN_SERVICE = frozenset({"idle", "allocated", "mixed", "completing", "planned", "reserved", "blocked"})
_OUT = frozenset("*$!%")
# Reasons for which the scheduler skips a job: waiting alone will not start it.
_PASSED_OVER = re.compile(r"Dependency|BeginTime|Held|JobHold|Limit|Resource_Down|Reservation|BadConstraints|Qos|Assoc")
_UNITS = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024}
UNLIMITED = float("inf")


@dataclass(frozen=True, kw_only=True)
class Amount:
    """Resources of one node. memory: MB."""

    cpus: int = 0
    memory: float = 0.0
    gpus: int = 0

    def fits(self, into: Amount) -> bool:
        """Whether a node with `into` free has enough for this."""
        return self.cpus <= into.cpus and self.memory <= into.memory and self.gpus <= into.gpus

    def minus(self, other: Amount) -> Amount:
        """The difference."""
        return Amount(cpus=self.cpus - other.cpus, memory=self.memory - other.memory, gpus=self.gpus - other.gpus)

    def plus(self, other: Amount) -> Amount:
        """The sum."""
        return Amount(cpus=self.cpus + other.cpus, memory=self.memory + other.memory, gpus=self.gpus + other.gpus)


@dataclass(frozen=True, kw_only=True)
class QueueNode:
    """One node. whole: all its resources. taken_cpus: used by all jobs on it, also by hidden ones. features: Slurm's words."""

    name: str
    whole: Amount
    taken_cpus: int
    usable: bool
    partitions: frozenset[str]
    features: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class RunningJob:
    """A job that holds nodes.

    each: resources of each node. end: end of its limit, seconds since the epoch. limit, used: seconds.
    """

    nodes: tuple[str, ...]
    each: Amount
    end: float
    limit: float
    used: float


@dataclass(frozen=True, kw_only=True)
class WaitingJob:
    """A job that waits for nodes. each: on each node. limit: seconds. whole_nodes: it shares no node. tier: of its partition."""

    nodes: int
    each: Amount
    limit: float
    partitions: tuple[str, ...]
    whole_nodes: bool
    tier: int = 1


@dataclass(frozen=True, kw_only=True)
class PartitionLimits:
    """The most that a partition gives to one job. time: seconds."""

    time: float = UNLIMITED
    nodes: float = UNLIMITED

    def allow(self, *, nodes: int, time: float) -> bool:
        """Whether a job of this size may start. Without a limit of its own, it gets the partition's."""
        return nodes <= self.nodes and (time <= self.time or time == UNLIMITED)


@dataclass(frozen=True, kw_only=True)
class QueueSnapshot:
    """The queue at one moment. waiting: in the order in which Slurm considers the jobs.

    shares: for recently ended jobs that ended by themselves, the share of their limit that they used. tiers: of partitions, by
    name; Slurm starts jobs in higher tiers first. limits: of partitions, by name. default: the partition of a job that names none.
    """

    now: float
    nodes: tuple[QueueNode, ...]
    running: tuple[RunningJob, ...]
    waiting: tuple[WaitingJob, ...]
    shares: tuple[float, ...] = ()
    tiers: Mapping[str, int] = field(default_factory=dict)
    limits: Mapping[str, PartitionLimits] = field(default_factory=dict)
    default: str | None = None

    def allows(self, partitions: Sequence[str], *, nodes: int, time: float) -> bool:
        """Whether one of the partitions (none: the default one) may start such a job. Slurm may let one wait that never starts."""
        names = partitions or ([self.default] if self.default else [])
        known = [self.limits[name] for name in names if name in self.limits]
        return not known or any(one.allow(nodes=nodes, time=time) for one in known)

    @property
    def other_partitions(self) -> tuple[str, ...]:
        """Partitions with nodes in service, without the default one: those of the highest tier first."""
        usable = {name for node in self.nodes if node.usable for name in node.partitions}
        return tuple(sorted(usable - {self.default}, key=lambda name: (-self.tiers.get(name, 1), name)))

    @property
    def hidden(self) -> bool:
        """Whether there are running jobs that this user may not see (Slurm's PrivateData). Then no plan can be made."""
        seen: dict[str, int] = {}
        for job in self.running:
            for node in job.nodes:
                seen[node] = seen.get(node, 0) + job.each.cpus
        return any(node.taken_cpus > seen.get(node.name, 0) for node in self.nodes)


def read_queue(*, env: Mapping[str, str]) -> QueueSnapshot:
    """The queue as it is now. SlurmError when Slurm does not answer."""
    env = run_local_or_ssh.with_variable(env, "SLURM_TIME_FORMAT", "%s")
    nodes = ["sinfo", "--noheader", "--Node", "--exact", f"--Format={_columns(_NODE)}"]
    jobs = ["squeue", "--noheader", "--array", "--states=all", f"--Format={_columns(_JOB)}"]
    try:
        told = [tolerant_reader.ask(argv, env=env, timeout=_TIMEOUT_S) for argv in (nodes, jobs)]
    except ToolError as error:
        # The last line is Slurm's own reason; a list of clusters shows one line of each.
        reason = error.message.splitlines()[-1].strip()
        raise SlurmError(f"Slurm's queue could not be read: {reason}", hint="is the cluster up?") from None
    return parse(*told, now=time.time())


def _columns(names: Sequence[str]) -> str:
    return ",".join(f"{name}:|" for name in names)


def parse(nodes: str, jobs: str, *, now: float) -> QueueSnapshot:
    """A snapshot from the output of sinfo and squeue with the columns of this module."""
    node_rows = [row for row in _rows(nodes, _NODE) if re.fullmatch(r"\d+/\d+/\d+/\d+", row["CPUsState"])]
    tiers = {_partition(row): int(row["PriorityTier"]) if row["PriorityTier"].isdecimal() else 1 for row in node_rows}
    rows = [row for row in _rows(jobs, _JOB) if re.fullmatch(r"[A-Z]+", row["StateCompact"])]
    waits = [row for row in rows if row["StateCompact"] == "PD" and not _PASSED_OVER.search(row["Reason"])]
    waits.sort(key=lambda row: (-_tier(row, tiers), -int(row["PriorityLong"] or 0), _number(row["JobArrayID"])))
    return QueueSnapshot(
        now=now,
        nodes=_nodes(node_rows),
        running=tuple(_running(row, now) for row in rows if row["StateCompact"] in {"R", "CG", "CF", "S", "SO"}),
        waiting=tuple(_waiting(row, _tier(row, tiers)) for row in waits),
        shares=tuple(filter(None, map(_share, rows))),
        tiers=tiers,
        limits={_partition(row): _limits(row) for row in node_rows},
        default=next((_partition(row) for row in node_rows if row["Partition"].endswith("*")), None),
    )


def _rows(text: str, names: Sequence[str]) -> list[dict[str, str]]:
    """The lines with all columns. A site may print lines of its own."""
    lines = text.split("\n")
    return [dict(zip(names, line.split("|"), strict=False)) for line in lines if line.count("|") >= len(names)]


def _partition(row: Mapping[str, str]) -> str:
    return row["Partition"].rstrip("*")


def _limits(row: Mapping[str, str]) -> PartitionLimits:
    most = row["Size"].rpartition("-")[2]
    return PartitionLimits(time=seconds(row["Time"]) or UNLIMITED, nodes=int(most) if most.isdecimal() else UNLIMITED)


def _nodes(rows: Sequence[Mapping[str, str]]) -> tuple[QueueNode, ...]:
    """All nodes, each once; sinfo prints a node for each of its partitions."""
    by_name: dict[str, QueueNode] = {}
    for row in rows:
        before = by_name.get(row["NodeHost"])
        taken, _, _, total = map(int, row["CPUsState"].split("/"))
        state = row["StateLong"].rstrip("*~#!%$@^-+")
        by_name[row["NodeHost"]] = QueueNode(
            name=row["NodeHost"],
            whole=Amount(cpus=total, memory=float(row["Memory"] or 0), gpus=count_gpus(row["Gres"])),
            taken_cpus=taken,
            usable=state in _IN_SERVICE and not _OUT & set(row["StateLong"][len(state) :]),
            partitions=frozenset({_partition(row), *(before.partitions if before else ())}),
            features=frozenset(row["Features"].split(",")) - {"(null)", ""},
        )
    return tuple(by_name.values())


def _running(row: Mapping[str, str], now: float) -> RunningJob:
    nodes = expand_nodes(row["NodeList"])
    # A completing job ends in a moment; a job past its limit ends when Slurm next checks.
    end = float(row["EndTime"]) if row["EndTime"].isdecimal() else UNLIMITED
    leaves = row["StateCompact"] == "CG"
    return RunningJob(
        nodes=nodes,
        each=_each(row, max(1, len(nodes))),
        end=now if leaves else max(end, now),
        limit=seconds(row["TimeLimit"]),
        used=seconds(row["TimeUsed"]),
    )


def _waiting(row: Mapping[str, str], tier: int) -> WaitingJob:
    nodes = max(1, int(row["NumNodes"] or 1))
    return WaitingJob(
        nodes=nodes,
        each=_each(row, nodes),
        limit=seconds(row["TimeLimit"]),
        partitions=tuple(row["Partition"].split(",")),
        whole_nodes=row["OverSubscribe"] == "NO",
        tier=tier,
    )


def _each(row: Mapping[str, str], nodes: int) -> Amount:
    """The resources of a job on one node. The TRES contain GPUs only if the site accounts for them."""
    tres = dict(re.findall(r"([^,=]+)=([^,]*)", row["tres-alloc"]))
    gpus = tres.get("gres/gpu")
    per_node = sum(
        int(count or 1) for count in re.findall(r"gpu(?::[A-Za-z_][^:,]*)?(?::(\d+))?", row["tres-per-node"])
    )
    return Amount(
        cpus=-(-int(tres.get("cpu", "1")) // nodes),
        memory=megabytes(tres.get("mem", "0")) / nodes,
        gpus=-(-int(gpus) // nodes) if gpus else per_node,
    )


def _share(row: Mapping[str, str]) -> float | None:
    limit = seconds(row["TimeLimit"])
    if row["StateCompact"] not in {"CD", "F", "TO"} or not 0 < limit < UNLIMITED:
        return None
    return min(1.0, max(seconds(row["TimeUsed"]), 1.0) / limit)


def _tier(row: Mapping[str, str], tiers: Mapping[str, int]) -> int:
    return max((tiers.get(name, 1) for name in row["Partition"].split(",")), default=1)


def _number(job_id: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", job_id)))


def seconds(text: str) -> float:
    """Seconds from Slurm's [days-]hours:minutes:seconds; infinite for no limit, 0 for other text."""
    if text in {"UNLIMITED", "infinite"}:
        return UNLIMITED
    days, _, clock = text.rpartition("-")
    parts = clock.split(":")
    if not all(part.isdecimal() for part in (*parts, days or "0")):
        return 0.0
    found = 0.0
    for part in parts:
        found = found * 60 + int(part)
    return found + 86400 * int(days or 0)


def megabytes(text: str) -> float:
    """MB from `18078M` or `1.5G`; a bare number is MB."""
    found = re.fullmatch(r"([\d.]+)([KMGT]?)", text)
    return float(found[1]) * _UNITS[found[2]] if found else 0.0
