"""Placement: the nodes of each role, its number of ranks, and its share of the CPUs. A plain job is one role."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kit.allocation import Allocation
from kit.config import Resolved
from kit.planning import role_rules
from kit.schema.roles import Role, StepShape
from kit.schema.world_size_text import PLAIN


@dataclass(frozen=True, kw_only=True)
class RolePlacement:
    """A role and its nodes. first: index of its first node in the job. shared: another role has a step on one of its nodes.

    scripts: the role whose scripts it runs. index: its number among the roles with the same program. plain: it is the only role of
    a job without roles.
    """

    name: str
    role: Role
    shape: StepShape
    first: int
    nodes: int
    ranks_per_node: int
    tasks_per_node: int
    cpus_per_task: int
    cpus_per_rank: int
    shared: bool
    scripts: str
    index: int = 0
    plain: bool = False

    @property
    def folder(self) -> str:
        """The folder of its scripts in the run folder."""
        return "" if self.plain else f"roles/{self.scripts}"

    @property
    def logs(self) -> str:
        """The folder of its logs in the run folder."""
        return "logs" if self.plain else f"logs/{self.name}"

    @property
    def world_size(self) -> int:
        """Its number of ranks over all of its nodes."""
        return self.nodes * self.ranks_per_node

    def facts(self) -> dict[str, object]:
        """Facts that the batch script needs in addition to the argv."""
        role, ready = self.role, self.role.ready
        asked = ""
        if ready is not None:
            kind = "http" if ready.http else "tcp" if ready.tcp else "file"
            asked = f"{kind} {ready.http or ready.tcp or ready.file} {ready.path if ready.http else ''}".rstrip()
        return {
            "name": self.name,
            "folder": self.folder,
            "variable": variable(self.name),
            "policy": role.policy,
            "first": self.first,
            "nodes": self.nodes,
            "ranks": self.world_size,
            "after": " ".join(role.after),
            "ports": " ".join(role.ports),
            "ready": asked,
            "ready_timeout": ready.timeout_s if ready else 0,
            "health": "1" if ready and ready.health else "",
            "restart": role.restart,
            "least": role.least,
        }

    def env(self) -> list[str]:
        """Environment variables for its step only."""
        words = [] if self.plain else [f"KIT_ROLE_INDEX={self.index}"]
        words += ["KIT_SERVICE=1"] if self.role.policy == "service" else []
        if self.role.gpus is None:
            return words
        return [*words, f"KIT_GPUS={','.join(map(str, self.role.gpus)) or 'none'}"]


def variable(name: str) -> str:
    """A role's name as part of a name of an environment variable."""
    return name.upper().replace("-", "_")


def place_roles(resolved: Resolved, allocation: Allocation, made: Mapping[str, Role]) -> tuple[RolePlacement, ...]:
    """Place every role on nodes. A job without roles is placed as one role. ConfigError if the roles do not fit together.

    made: the framework's roles. They come before the roles of the job file.
    """
    roles = {**made, **{name: role for name, role in resolved.job.roles.items() if name not in made}}
    if not roles:
        return (_plain(resolved, allocation),)
    role_rules.check(resolved, allocation, roles)
    spans = _spans(allocation, roles)
    return _with_scripts([_placed(name, roles, spans, allocation) for name in roles])


def _placed(name: str, roles: Mapping[str, Role], spans: Mapping[str, range], allocation: Allocation) -> RolePlacement:
    role, span = roles[name], spans[name]
    ranks, tasks = _ranks(role, allocation)
    on_node = _most_on_a_node(spans, span, roles, allocation)
    return RolePlacement(
        name=name,
        scripts=name,
        role=role,
        shape=role.shape or "srun",
        first=span[0],
        nodes=len(span),
        ranks_per_node=ranks,
        tasks_per_node=tasks,
        cpus_per_task=max(1, allocation.cpus_per_node // tasks),
        cpus_per_rank=max(1, allocation.cpus_per_node // on_node),
        shared=on_node > ranks,
    )


def world_sizes(roles: Iterable[RolePlacement]) -> dict[str, int]:
    """Role -> its world size. A service has tasks but takes no part in training, so it has none."""
    return {one.name: one.world_size for one in roles if one.role.policy != "service"}


def _with_scripts(placed: Sequence[RolePlacement]) -> tuple[RolePlacement, ...]:
    """Let roles that differ only in their place, such as replica groups, share the scripts of the first one."""
    programs: Counter[object] = Counter()
    first: dict[object, str] = {}
    roles = []
    for one in placed:
        role = one.role
        program = (role.image, role.script, role.command, role.args, tuple(role.env.items()))
        scripts = first.setdefault((program, one.shape, one.nodes, one.ranks_per_node, one.cpus_per_rank), one.name)
        roles.append(replace(one, scripts=scripts, index=programs[program]))
        programs[program] += 1
    return tuple(roles)


def _plain(resolved: Resolved, allocation: Allocation) -> RolePlacement:
    return RolePlacement(
        name=PLAIN,
        scripts=PLAIN,
        role=Role(),
        shape="srun" if resolved.job.shape == "srun" else "torchrun",
        first=0,
        nodes=allocation.nodes,
        ranks_per_node=allocation.ranks_per_node,
        tasks_per_node=allocation.tasks_per_node,
        cpus_per_task=allocation.cpus_per_task,
        cpus_per_rank=allocation.cpus_per_rank,
        shared=False,
        plain=True,
    )


def _ranks(role: Role, allocation: Allocation) -> tuple[int, int]:
    """Ranks and tasks per node."""
    gpus = allocation.gpus_per_node if role.gpus is None else len(role.gpus)
    ranks = role.ranks_per_node or (max(1, gpus) if role.shape == "torchrun" else 1)
    return ranks, 1 if role.shape == "torchrun" else ranks


def _spans(allocation: Allocation, roles: Mapping[str, Role]) -> dict[str, range]:
    """role -> indices of its nodes, in the order of the file. A role that shares nodes gets the indices of the other role."""
    own = {name: role.nodes or 1 for name, role in roles.items() if role.shares is None}
    rest = allocation.nodes - sum(n for n in own.values() if n != "rest")
    spans: dict[str, range] = {}
    first = 0
    for name, count in own.items():
        until = first + (rest if count == "rest" else count)
        spans[name] = range(first, until)
        first = until
    return {name: spans[role.shares or name][: _shared(role)] for name, role in roles.items()}


def _shared(role: Role) -> int | None:
    """The number of nodes that a role shares with another one, counted from the other role's first node.

    None if it shares all of them, or has its own nodes.
    """
    return role.nodes if role.shares is not None and isinstance(role.nodes, int) else None


def _most_on_a_node(spans: Mapping[str, range], own: range, roles: Mapping[str, Role], allocation: Allocation) -> int:
    """Ranks of all roles, counted on each node of this role: the largest count."""
    counts = [sum(_ranks(roles[other], allocation)[0] for other, span in spans.items() if node in span) for node in own]
    return max(counts)
