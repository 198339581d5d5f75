"""How many nodes and GPUs a job has, where its roles or its framework's own table say so and not [resources]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kit import frameworks
from kit.config import Resolved
from kit.errors import ConfigError, Fault
from kit.spec.roles import Role


def sized(resolved: Resolved) -> Resolved:
    """The job with the resources that it comes to. ConfigError when its [resources] say otherwise.

    What a cluster or a launcher fills in there gives way without a word.
    """
    job, framework = resolved.job, resolved.launcher.framework
    needed = frameworks.resources(framework, job)
    if job.roles and "nodes" not in needed:
        needed["nodes"] = _nodes(resolved, job.roles)
    made = job.resources.model_copy(update=needed)
    faults = [
        Fault(
            file=resolved.job_file,
            key=f"resources.{key}",
            got=str(resolved.asked[key]),
            allowed=f"{value}: what [{framework or 'roles'}] comes to",
            hint="leave it out",
        )
        for key, value in needed.items()
        # Under --debug the job's own figure is another one than the user's.
        if value not in (getattr(job.resources, key), resolved.asked.get(key, value))
    ]
    if faults:
        raise ConfigError.of(*faults)
    return replace(resolved, job=job.model_copy(update={"resources": made}))


def _nodes(resolved: Resolved, roles: Mapping[str, Role]) -> int:
    """The sum of the roles', or `resources.nodes` where one takes the rest; ConfigError when there is no rest."""
    total = resolved.job.resources.nodes
    own = [role.nodes or 1 for role in roles.values() if role.shares is None]
    counted = sum(n for n in own if n != "rest")
    rest = own.count("rest")
    if rest > 1 or (rest and total <= counted):
        allowed = f"one role with it, and resources.nodes above {counted}, which the others have; it is {total}"
        raise ConfigError.of(
            Fault(file=resolved.job_file, key="roles", got=f"nodes = 'rest' in {rest}", allowed=allowed)
        )
    return total if rest else counted
