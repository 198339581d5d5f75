"""DiLoCo: split the nodes into replica groups that train independently and periodically average parameters.

`replica_groups` assigns nodes and GPUs to the groups. The start shape `replicas` starts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kit.allocation import Allocation
from kit.errors import Fault
from kit.frameworks.base import Extra, Framework
from kit.frameworks.nearest_multiple_or_divisor import divisor, multiple
from kit.schema.diloco import DiLoCo
from kit.schema.job import Job
from kit.schema.launcher import Launcher
from kit.schema.roles import Ready, Role

PICTURE = "layout.txt"
LIGHTHOUSE = "lighthouse"
GATE = "gate"

_LIGHTHOUSE_RESTARTS = 10
# _JOIN_MS: how long a quorum waits for a live group that has not asked for it yet; the rounds of the groups differ by less.
# _HEARTBEAT_MS: how long the others wait for a group that was killed. A heartbeat comes ten times a second.
_JOIN_MS, _HEARTBEAT_MS = 60_000, 5_000

# The picture shows this many nodes. With more nodes it shows the first ones and the last.
_DRAWN = 8


@dataclass(frozen=True, kw_only=True)
class GroupPlacement:
    """One replica group.

    nodes: indices into the job's nodes, from 0. gpus: indices on each node; empty on a cluster without GPUs.
    """

    index: int
    nodes: tuple[int, ...]
    gpus: tuple[int, ...]
    ranks_per_node: int

    @property
    def world_size(self) -> int:
        """The number of ranks in this group."""
        return len(self.nodes) * self.ranks_per_node


class DiLoCoGroups:
    """Adds the program's options, a role for each group, and a picture of the groups in the run folder."""

    tables = ("diloco",)

    def resources(self, job: Job) -> dict[str, int]:
        """No resources: the [diloco] table divides the nodes that the job has."""
        return {}

    def faults(self, job: Job, launcher: Launcher, allocation: Allocation) -> Iterator[Fault]:
        """Numbers of nodes, GPUs and ranks that the groups cannot share evenly, and impossible quorums."""
        ranks = job.resources.ranks_per_node
        yield from broken(allocation.nodes, allocation.gpus_per_node, job.diloco or DiLoCo(), ranks_per_node=ranks)
        if job.diloco and job.diloco.across and not job.is_launchers:
            problem = "a training over two clusters needs the launcher's own program: only it can use the relay"
            yield Fault(key="diloco.across", problem=problem, hint="across = false")

    def prepare(self, job: Job, launcher: Launcher, allocation: Allocation) -> Extra:
        """The options, the roles of the groups and the lighthouse, and their picture."""
        table = job.diloco or DiLoCo()
        groups = groups_of(job, allocation)
        quorum = least(table, table.groups or len(groups), len(groups))
        if table.relay:  # the program knows the number of all groups alone
            table = table.model_copy(update={"min_replicas": quorum})
        words = [str(word) for pair in table.options().items() for word in pair]
        drawn = picture(groups, quorum, table)
        return Extra(
            files={PICTURE: drawn},
            args=tuple(words),
            roles=_roles(groups, quorum, table, python=job.python),
            explained=tuple(drawn.splitlines()),
        )


framework: Framework = DiLoCoGroups()


def groups_of(job: Job, allocation: Allocation) -> tuple[GroupPlacement, ...]:
    """The replica groups of a job that has no faults."""
    ranks = job.resources.ranks_per_node
    return replica_groups(allocation.nodes, allocation.gpus_per_node, job.diloco or DiLoCo(), ranks_per_node=ranks)


def _roles(groups: Sequence[GroupPlacement], quorum: int, table: DiLoCo, *, python: str) -> dict[str, Role]:
    """A role for each group, and the lighthouse on the first node unless another job runs it.

    Groups on one node share that node. Over two clusters a gate runs beside the lighthouse: the groups reach both
    that and each other through it.
    """
    own = table.lighthouse is None
    services = {**({LIGHTHOUSE: _lighthouse(quorum)} if own else {}), **_gate(table, python)}
    reached = f"http://{{{LIGHTHOUSE}.address}}:{{{LIGHTHOUSE}.port.http}}"
    across = {}
    if table.relay:
        reached = f"http://{{{GATE}.address}}:{{{GATE}.port.{LIGHTHOUSE}}}"
        across["REPLICA_GROUP_GATE"] = f"{{{GATE}.address}}:{{{GATE}.port.groups}}"
        across["REPLICA_GROUPS_HERE"] = f"{table.first_group} {len(groups)}"
    first_on = {group.nodes[0]: group for group in reversed(groups)}
    roles = {}
    for group in groups:
        holder = first_on[group.nodes[0]]
        roles[f"replica-{group.index}"] = Role(
            shape="torchrun",
            nodes=len(group.nodes) if holder is group else None,
            shares=None if holder is group else f"replica-{holder.index}",
            ranks_per_node=group.ranks_per_node,
            gpus=group.gpus or None,
            env={
                "REPLICA_GROUP_ID": str(table.first_group + group.index) if table.first_group else "{self.index}",
                "NUM_REPLICA_GROUPS": str(table.groups or len(groups)),
                "TORCHFT_LIGHTHOUSE": table.lighthouse or reached,
                **across,
            },
            after=tuple(services),
            policy="replica",
            restart=table.restarts,
            least=min(quorum, len(groups)),
        )
    return {**services, **roles}


def _gate(table: DiLoCo, python: str) -> dict[str, Role]:
    """The way to the other cluster's groups and, in the second job, to the first one's lighthouse."""
    if not table.relay:
        return {}
    ports = {name: f"{{{GATE}.port.{name}}}" for name in ("groups", LIGHTHOUSE)}
    role = Role(
        shares="replica-0",
        nodes=1,
        command=(python, "{run}/code/gate.py"),
        args=(
            "--relay",
            table.relay,
            "--own",
            f"{{{LIGHTHOUSE}.address}}:{{{LIGHTHOUSE}.port.http}}",
            *(word for name, port in ports.items() for word in (f"--{name}", port)),
            *(() if table.first_group else ("--first",)),
        ),
        ports=tuple(ports),
        ready=Ready(tcp=LIGHTHOUSE, timeout_s=120),
        policy="service",
        restart=_LIGHTHOUSE_RESTARTS,
    )
    return {GATE: role}


def _lighthouse(quorum: int) -> Role:
    """The lighthouse: it tells the groups which of them are alive.

    It keeps no state on disk, so it can restart on the same address.
    """
    return Role(
        shares="replica-0",
        nodes=1,
        command=(
            "torchft_lighthouse",
            "--bind",
            f"0.0.0.0:{{{LIGHTHOUSE}.port.http}}",
            "--min_replicas",
            str(quorum),
            "--join_timeout_ms",
            str(_JOIN_MS),
            "--heartbeat_timeout_ms",
            str(_HEARTBEAT_MS),
            "--quorum_tick_ms",
            "100",
        ),
        env={"RUST_LOG": "info"},
        ports=("http",),
        ready=Ready(http="http", path="/status", timeout_s=120, health=True),
        policy="service",
        restart=_LIGHTHOUSE_RESTARTS,
    )


def replica_groups(
    nodes: int, gpus_per_node: int, table: DiLoCo, *, ranks_per_node: int | None = None
) -> tuple[GroupPlacement, ...]:
    """The groups, in the order of their nodes. The arguments must have passed `broken`.

    ranks_per_node: over all groups of a node; default: one rank per GPU, or one per group where there are no GPUs.
    """
    groups_per_node, nodes_per_group = table.replicas_per_node or 1, table.nodes_per_replica or 1
    ranks = ranks_per_node or gpus_per_node or groups_per_node
    gpus = gpus_per_node // groups_per_node
    return tuple(
        GroupPlacement(
            index=index,
            nodes=tuple(
                range(index // groups_per_node * nodes_per_group, (index // groups_per_node + 1) * nodes_per_group)
            ),
            gpus=tuple(range(index % groups_per_node * gpus, (index % groups_per_node + 1) * gpus)),
            ranks_per_node=ranks // groups_per_node,
        )
        for index in range(nodes // nodes_per_group * groups_per_node)
    )


def least(table: DiLoCo, groups: int, here: int | None = None) -> int:
    """The number of groups that a quorum needs. A new group alone must not be a quorum: it would reset the model to its start.

    here: of a training over two clusters, the groups of this job, which have to be enough while the other cluster is away.
    """
    if table.relay and here is not None:
        return table.min_replicas or max(1, min(2, here, groups - here))
    return table.min_replicas or min(2, groups)


def picture(groups: Sequence[GroupPlacement], quorum: int, table: DiLoCo | None = None) -> str:
    """A text picture for people: nodes, groups, GPUs, the meeting point of each group, and the node of the lighthouse.

    Ports are chosen when the job runs; state/roles.json then lists them.
    """
    table = table or DiLoCo()
    nodes = groups[-1].nodes[-1] + 1
    held = [[group for group in groups if node in group.nodes] for node in range(nodes)]
    title = f"{_count(nodes, 'node')}, {_count(len(groups), 'replica group')} of {_count(groups[0].world_size, 'rank')}"
    whole = f"the training's {table.groups}" if table.groups else "them"
    lines = [f"{title}; an average needs {quorum} of {whole}.", ""]
    if table.lighthouse:
        lines = [*lines[:1], f"Another job says which groups are alive: {table.lighthouse}", ""]
    if table.relay:
        lines = [
            *lines[:1],
            f"The other groups are on another cluster, and are reached by the relay {table.relay}.",
            "",
        ]
    shown = range(nodes) if nodes <= _DRAWN else (*range(_DRAWN - 2), nodes - 1)
    for node in shown:
        if node == nodes - 1 and nodes > _DRAWN:
            lines.append(f"  …      nodes {_DRAWN - 2} to {nodes - 2} likewise")
        items = [] if node or table.lighthouse else ["lighthouse" + " " * 28 + "its port: http"]
        items += [] if node or not table.relay else ["gate" + " " * 34 + "its ports: groups, lighthouse"]
        items += [_line(group, node, table.first_group) for group in held[node]]
        for place, item in enumerate(items):
            branch = "─" if len(items) == 1 else "┬" if place == 0 else "└" if place == len(items) - 1 else "├"
            lines.append(f"{f'node {node}' if place == 0 else '':8} {'─' if place == 0 else ' '}{branch}─ {item}")
    return "\n".join(lines) + "\n"


def _line(group: GroupPlacement, node: int, earlier: int) -> str:
    """The line of one group on one of its nodes."""
    first = group.nodes.index(node) * group.ranks_per_node
    gpus = f"GPU {_span(group.gpus)}" if group.gpus else "no GPU"
    ranks = f"rank {_span(range(first, first + group.ranks_per_node))}"
    where = "a port of its own" if node == group.nodes[0] else f"meets on node {group.nodes[0]}"
    return f"group {earlier + group.index:<5}{gpus:13}{ranks:14}{where}"


def _span(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def broken(nodes: int, gpus: int, table: DiLoCo, *, ranks_per_node: int | None = None) -> Iterator[Fault]:
    """Numbers that do not divide evenly, and impossible quorums. The arguments are those of `replica_groups`."""
    groups_per_node, nodes_per_group = table.replicas_per_node or 1, table.nodes_per_replica or 1
    yield from _indivisible(nodes, gpus, ranks_per_node or gpus or groups_per_node, groups_per_node, nodes_per_group)
    yield from _too_few(table, table.groups or nodes * groups_per_node // nodes_per_group)
    if table.groups is not None and table.first_group + nodes * groups_per_node // nodes_per_group > table.groups:
        mine = nodes * groups_per_node // nodes_per_group
        last = table.first_group + mine - 1
        problem = f"this job has groups {table.first_group} to {last}, counted from 0, and the training has {table.groups} in all"
        yield Fault(key="diloco.groups", problem=problem, hint=f"groups = {table.first_group + mine}")
    if table.groups is None and (table.first_group or table.lighthouse):
        problem = "first_group or lighthouse says that other jobs have groups too: set the number of groups of all jobs"
        yield Fault(
            key="diloco.groups",
            problem=problem,
            hint=f"groups = {table.first_group + nodes * groups_per_node // nodes_per_group}",
        )


def _indivisible(nodes: int, gpus: int, ranks: int, groups_per_node: int, nodes_per_group: int) -> Iterator[Fault]:
    if gpus % groups_per_node:
        problem = f"{groups_per_node} groups cannot share the {gpus} GPUs of a node evenly"
        hint = f"replicas_per_node = {divisor(groups_per_node, gpus)}"
        yield Fault(key="diloco.replicas_per_node", problem=problem, hint=hint)
    if ranks % groups_per_node:
        problem = f"{ranks} ranks cannot be shared out evenly over diloco.replicas_per_node = {groups_per_node}"
        hint = f"ranks_per_node = {multiple(ranks, groups_per_node)}"
        yield Fault(key="resources.ranks_per_node", problem=problem, hint=hint)
    if nodes % nodes_per_group:
        problem = f"{nodes} nodes cannot be split into groups of {nodes_per_group}"
        hint = f"nodes_per_replica = {divisor(nodes_per_group, nodes)}"
        yield Fault(key="diloco.nodes_per_replica", problem=problem, hint=hint)


def _too_few(table: DiLoCo, groups: int) -> Iterator[Fault]:
    asked = table.min_replicas
    if asked is None:
        return
    if asked > max(groups, 1):
        problem = f"{asked} is more than the {groups} groups that there are: nothing would ever be averaged"
        yield Fault(key="diloco.min_replicas", problem=problem, hint=f"min_replicas = {max(groups, 1)}")
    elif asked < 2 <= groups and not table.across:
        problem = "must be at least 2: a group that starts alone would set the model back to its start"
        yield Fault(key="diloco.min_replicas", problem=problem, hint="min_replicas = 2")
