"""Where the roles of a job run: which nodes, how many ranks, which share of the CPUs. A plain job is the case of one role.

Pure arithmetic, and the checks of what one role says of another.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter

from kit.allocation import Layout
from kit.config import Resolved
from kit.errors import ConfigError, Fault, did_you_mean
from kit.spec.roles import Role, StepShape

# The step of a plain job. Its files are in the run folder itself, and it goes by no role's name.
PLAIN = "train"


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A role and its place. first: index of its first node among the job's. shared: another role has a step on one of its nodes.

    scripts: the role whose scripts it runs. index: which it is of the roles with the same program. plain: the one role of a job
    without roles.
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
        """Where its scripts are in the run folder."""
        return "" if self.plain else f"roles/{self.scripts}"

    @property
    def logs(self) -> str:
        """Where its logs are in the run folder."""
        return "logs" if self.plain else f"logs/{self.name}"

    @property
    def ranks(self) -> int:
        """Its world size."""
        return self.nodes * self.ranks_per_node

    def facts(self) -> dict[str, object]:
        """What the batch script has to know of it, beside its argv."""
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
            "ranks": self.ranks,
            "after": " ".join(role.after),
            "ports": " ".join(role.ports),
            "ready": asked,
            "ready_timeout": ready.timeout_s if ready else 0,
            "health": "1" if ready and ready.health else "",
            "restart": role.restart,
            "least": role.least,
        }

    def env(self) -> list[str]:
        """What its step alone finds in its environment."""
        words = [] if self.plain else [f"KIT_ROLE_INDEX={self.index}"]
        words += ["KIT_SERVICE=1"] if self.role.policy == "service" else []
        return [*words, f"KIT_GPUS={','.join(map(str, self.role.gpus))}"] if self.role.gpus else words


def variable(name: str) -> str:
    """A role's name as a part of a variable's."""
    return name.upper().replace("-", "_")


def place(resolved: Resolved, layout: Layout, roles: Mapping[str, Role]) -> tuple[Placed, ...]:
    """Every role in its place; without roles, the job itself as the only one. ConfigError for roles that do not fit each other."""
    if not roles:
        return (_plain(resolved, layout),)
    _check(resolved, layout, roles)
    spans = _spans(layout, roles)
    placed = []
    for name, role in roles.items():
        ranks, tasks = _ranks(role, layout)
        on_node = _most_on_a_node(spans, spans[name], roles, layout)
        placed.append(
            Placed(
                name=name,
                scripts=name,
                role=role,
                shape=role.shape or "srun",
                first=spans[name][0],
                nodes=len(spans[name]),
                ranks_per_node=ranks,
                tasks_per_node=tasks,
                cpus_per_task=max(1, layout.cpus_per_node // tasks),
                cpus_per_rank=max(1, layout.cpus_per_node // on_node),
                shared=on_node > ranks,
            )
        )
    return _with_scripts(placed)


def _with_scripts(placed: Sequence[Placed]) -> tuple[Placed, ...]:
    """Roles that differ in their place alone, as replica groups do, run the same scripts: those of the first."""
    programs: Counter[object] = Counter()
    first: dict[object, str] = {}
    found = []
    for one in placed:
        role = one.role
        program = (role.image, role.script, role.command, role.args, tuple(role.env.items()))
        scripts = first.setdefault((program, one.shape, one.nodes, one.ranks_per_node, one.cpus_per_rank), one.name)
        found.append(replace(one, scripts=scripts, index=programs[program]))
        programs[program] += 1
    return tuple(found)


def _plain(resolved: Resolved, layout: Layout) -> Placed:
    shape = resolved.job.shape or resolved.launcher.shapes[0]
    return Placed(
        name=PLAIN,
        scripts=PLAIN,
        role=Role(),
        shape="srun" if shape == "srun" else "torchrun",
        first=0,
        nodes=layout.nodes,
        ranks_per_node=layout.ranks_per_node,
        tasks_per_node=layout.tasks_per_node,
        cpus_per_task=layout.cpus_per_task,
        cpus_per_rank=layout.cpus_per_rank,
        shared=False,
        plain=True,
    )


def _ranks(role: Role, layout: Layout) -> tuple[int, int]:
    """Ranks and tasks a node."""
    gpus = layout.gpus_per_node if role.gpus is None else len(role.gpus)
    ranks = role.ranks_per_node or (max(1, gpus) if role.shape == "torchrun" else 1)
    return ranks, 1 if role.shape == "torchrun" else ranks


def _spans(layout: Layout, roles: Mapping[str, Role]) -> dict[str, range]:
    """role -> indices of its nodes, in the order of the file; those that share take the other's."""
    own = {name: role.nodes or 1 for name, role in roles.items() if role.shares is None}
    rest = layout.nodes - sum(n for n in own.values() if n != "rest")
    spans: dict[str, range] = {}
    first = 0
    for name, count in own.items():
        until = first + (rest if count == "rest" else count)
        spans[name] = range(first, until)
        first = until
    return {name: spans[role.shares or name][: _shared(role)] for name, role in roles.items()}


def _shared(role: Role) -> int | None:
    """How many of another role's nodes it takes, from the first on; None for all, and where it has its own."""
    return role.nodes if role.shares is not None and isinstance(role.nodes, int) else None


def _most_on_a_node(spans: Mapping[str, range], own: range, roles: Mapping[str, Role], layout: Layout) -> int:
    """Ranks of all roles on the fullest node of these."""
    counts = [sum(_ranks(roles[other], layout)[0] for other, span in spans.items() if node in span) for node in own]
    return max(counts)


def _unshareable(role: Role, other: Role, name: str) -> tuple[str, str, str] | None:
    """Why a role cannot run on another's nodes: key, what it is, what is allowed."""
    if other.shares is not None:
        return "shares", repr(name), "a role with nodes of its own"
    has = other.nodes or 1
    if isinstance(has, int) and (_shared(role) or 0) > has:
        return "nodes", str(role.nodes), f"at most {has}: those of {name!r}"
    return None


_PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9-]*)\.(address|nodes|port\.[a-z][a-z0-9-]*)\}")


def _check(resolved: Resolved, layout: Layout, roles: Mapping[str, Role]) -> None:
    faults = []

    def refuse(name: str, key: str, got: str, allowed: str, hint: str = "") -> None:
        faults.append(Fault(file=resolved.job_file, key=f"roles.{name}.{key}", got=got, allowed=allowed, hint=hint))

    for name, role in roles.items():
        others = [other for other in roles if other != name]
        for key, named in [("shares", role.shares), *(("after", one) for one in role.after)]:
            if named is not None and named not in others:
                refuse(name, key, repr(named), ", ".join(others) or "no other role", did_you_mean(named, others))
            elif key == "shares" and named is not None and (broken := _unshareable(role, roles[named], named)):
                refuse(name, *broken)
        if role.gpus and max(role.gpus) >= layout.gpus_per_node:
            refuse(name, "gpus", str(list(role.gpus)), f"0 to {layout.gpus_per_node - 1}: the GPUs of a node")
        for word in (*(role.command or ()), *role.args, *role.env.values()):
            for other, what in _PLACEHOLDER.findall(word):
                if other in roles and what.startswith("port.") and what[5:] not in roles[other].ports:
                    known = ", ".join(roles[other].ports) or "none"
                    refuse(name, "command", f"{{{other}.{what}}}", f"a port of {other!r}: {known}")
    if not any(role.policy != "service" for role in roles.values()):
        faults.append(
            Fault(file=resolved.job_file, key="roles", got="services only", allowed="a main role, which the job is for")
        )
    if not faults:
        faults += _circle(resolved.job_file, roles)
    if faults:
        raise ConfigError.of(*faults)


def _circle(file: str, roles: Mapping[str, Role]) -> Iterator[Fault]:
    """Roles that wait for each other."""
    try:
        TopologicalSorter({name: role.after for name, role in roles.items()}).prepare()
    except CycleError as error:
        yield Fault(file=file, key="roles", got=" -> ".join(error.args[1]), allowed="no role that waits for itself")
