"""Frameworks that want more than a program and its arguments: one module each, named by `framework` in launcher.toml.

A module holds `prepare(job, allocation, launcher, file) -> Extra`, and refuses, before anything is submitted, what the framework
itself would refuse an hour later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import cast

from kit.allocation import Allocation
from kit.config import Resolved
from kit.errors import ConfigError, Fault
from kit.frameworks import reference
from kit.spec.job import Job
from kit.spec.paths import is_launchers
from kit.spec.roles import Role


@dataclass(frozen=True, kw_only=True)
class Extra:
    """What a framework adds: files of the run folder, name -> text; arguments. In both, {run} is the run folder inside.

    roles: what the job comes apart into, for the start shapes `replicas` and `roles`. explained: for a reader of the batch script.
    """

    files: dict[str, str] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    roles: Mapping[str, Role] = field(default_factory=dict)
    explained: tuple[str, ...] = ()


def prepare(resolved: Resolved, allocation: Allocation) -> Extra:
    """What the launcher's framework adds to a job, if it names one. ConfigError when the job does not fit it."""
    job, launcher, file = resolved.job, resolved.launcher, resolved.job_file
    framework = launcher.framework
    if is_launchers(job.script):
        reference.check(job, launcher, allocation, file=file)
    unread = [
        key for key in ("deepspeed", "megatron", "rl", "sft") if key != framework and getattr(job, key) is not None
    ]
    if unread:
        problem = f"launcher {job.launcher!r} does not read this table: options of its program go into args"
        raise ConfigError.of(*(Fault(key=key, problem=problem, hint=f"remove [{key}]") for key in unread), file=file)
    if framework is None:
        return Extra()
    module = import_module(f"kit.frameworks.{framework}")
    return cast(Callable[..., Extra], module.prepare)(job, allocation, launcher=launcher, file=file)


def resources(framework: str | None, job: Job) -> dict[str, int]:
    """What the framework's own table says of the job's resources: `nodes`, `gpus_per_node`. Else [resources] counts."""
    if framework is None:
        return {}
    module = import_module(f"kit.frameworks.{framework}")
    asking = {key: getattr(module, key, None) for key in ("nodes", "gpus_per_node")}
    found = {key: cast(Callable[[Job], int | None], ask)(job) for key, ask in asking.items() if ask}
    return {key: value for key, value in found.items() if value is not None}
