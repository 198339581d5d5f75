"""What roles say of each other: the names exist, those that share fit, ports are there, nobody waits for itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

from kit.allocation import Allocation
from kit.config import Resolved
from kit.errors import ConfigError, Fault, did_you_mean
from kit.spec.roles import Role

_PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9-]*)\.(address|nodes|port\.[a-z][a-z0-9-]*)\}")


def check(resolved: Resolved, allocation: Allocation, roles: Mapping[str, Role]) -> None:
    """ConfigError with all that is wrong about the roles of a job."""
    file, rank_args = resolved.job_file, resolved.job.rank_args
    faults = [fault for name in roles for fault in _wrong(name, roles, allocation, file)]
    if not any(role.policy != "service" for role in roles.values()):
        faults.append(Fault(file=file, key="roles", got="services only", allowed="a main role, which the job is for"))
    if rank_args and all(r.command is not None or r.script is not None for r in roles.values()):
        allowed = "nothing: each role says its own program, which finds these in its environment"
        faults.append(Fault(file=file, key="rank_args", got=repr(rank_args), allowed=allowed))
    if faults := faults or [*_circle(file, roles)]:
        raise ConfigError.of(*faults)


def _unshareable(role: Role, other: Role, name: str) -> tuple[str, str, str] | None:
    """Why a role cannot run on another's nodes: key, what it is, what is allowed."""
    if other.shares is not None:
        return "shares", repr(name), "a role with nodes of its own"
    has, asked = other.nodes or 1, role.nodes
    if isinstance(has, int) and isinstance(asked, int) and asked > has:
        return "nodes", str(role.nodes), f"at most {has}: those of {name!r}"
    return None


def _wrong(name: str, roles: Mapping[str, Role], allocation: Allocation, file: str) -> Iterator[Fault]:
    """What a role says that its node, or the others, do not have."""
    role, others, where = roles[name], [other for other in roles if other != name], f"roles.{name}"
    for key, named in [("shares", role.shares), *(("after", one) for one in role.after)]:
        if named is not None and named not in others:
            allowed, hint = ", ".join(others) or "no other role", did_you_mean(named, others)
            yield Fault(file=file, key=f"{where}.{key}", got=repr(named), allowed=allowed, hint=hint)
        elif key == "shares" and named is not None and (broken := _unshareable(role, roles[named], named)):
            at, got, allowed = broken
            yield Fault(file=file, key=f"{where}.{at}", got=got, allowed=allowed)
    if role.gpus and max(role.gpus) >= allocation.gpus_per_node:
        allowed = f"0 to {allocation.gpus_per_node - 1}: the GPUs of a node"
        yield Fault(file=file, key=f"{where}.gpus", got=str(list(role.gpus)), allowed=allowed)
    for word in (*(role.command or ()), *role.args, *role.env.values()):
        for other, what in _PLACEHOLDER.findall(word):
            if other in roles and what.startswith("port.") and what[5:] not in roles[other].ports:
                allowed = f"a port of {other!r}: {', '.join(roles[other].ports) or 'none'}"
                yield Fault(file=file, key=f"{where}.command", got=f"{{{other}.{what}}}", allowed=allowed)


def _circle(file: str, roles: Mapping[str, Role]) -> Iterator[Fault]:
    """Roles that wait for each other."""
    try:
        TopologicalSorter({name: role.after for name, role in roles.items()}).prepare()
    except CycleError as error:
        yield Fault(file=file, key="roles", got=" -> ".join(error.args[1]), allowed="no role that waits for itself")
