"""Training frameworks that need more than a program and its arguments. Each is one module, found by its name; see base.py."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import cast

from kit.allocation import Allocation
from kit.config import Resolved
from kit.config.program_arguments import PLACE, is_value, values_of
from kit.errors import ConfigError, Fault
from kit.frameworks import launcher_program_options, program_parallelism, program_releases
from kit.frameworks.base import Extra, Framework
from kit.schema.job import FRAMEWORK_TABLES, Job
from kit.schema.launcher import Launcher

__all__ = ["Extra", "Framework", "get", "options_read", "prepare", "resources"]


def get(name: str) -> Framework:
    """The framework of kit/frameworks/<name>.py."""
    return cast(Framework, import_module(f"kit.frameworks.{name}").framework)


def prepare_extra(resolved: Resolved, allocation: Allocation, packages: Mapping[str, str]) -> Extra:
    """Return what the launcher's framework adds to a job; nothing if the launcher names no framework.

    packages: name -> version of the packages in the image. ConfigError when the job breaks a rule of its programs or of the
    framework.
    """
    job, launcher = resolved.job, resolved.launcher
    framework = get(launcher.framework) if launcher.framework else None
    faults = [*_tables_of_other_frameworks(job, framework), *_too_many_ranks(job, launcher, allocation)]
    if launcher.releases_of(job) is not None:
        faults += program_releases.faults(job, launcher, packages)
        job = program_releases.with_release(job, launcher, packages)
    if job.is_launchers:
        faults += launcher_program_options.faults_of(resolved)
        faults += program_parallelism.faults(job, launcher, allocation)
    if framework:
        faults += framework.faults(job, launcher, allocation)
    if faults:
        raise ConfigError.of(*faults, file=resolved.job_file)
    extra = framework.prepare(job, launcher, allocation) if framework else Extra()
    if faults := [*_options_written_twice(resolved, extra, framework.tables if framework else ())]:
        raise ConfigError.of(*faults)
    return extra


def _tables_of_other_frameworks(job: Job, framework: Framework | None) -> Iterator[Fault]:
    """Refuse tables that only other frameworks read: they would have no effect, and the author of the job expects one."""
    own = framework.tables if framework else ()
    for key in FRAMEWORK_TABLES:
        if key not in own and getattr(job, key) is not None:
            problem = f"launcher {job.launcher!r} does not read this table: options of its program go into args"
            yield Fault(key=key, problem=problem, hint=f"remove [{key}]")


def _options_written_twice(resolved: Resolved, extra: Extra, tables: tuple[str, ...]) -> Iterator[Fault]:
    """A fault for each option of the words after `--` that the kit writes from a table of the job."""
    written = {word.partition("=")[0] for word in extra.args if not is_value(word)}
    for option in sorted(written & resolved.words.options):
        key = next(iter(_keys_of_option(resolved, option, tables)), None)
        if key is None:
            problem, hint = "the kit writes this option itself", f"leave {option} out"
        else:
            problem = f"the kit writes this option, from {key}"
            value = " ".join(values_of(resolved.words, option)) or "true"
            hint = f"--set {shlex.quote(f'{key}={value}')}"
        yield Fault(file=PLACE, key=option, problem=problem, hint=hint)


def _keys_of_option(resolved: Resolved, option: str, tables: tuple[str, ...]) -> Iterator[str]:
    """The key of the job with the option's name."""
    name = option.lstrip("-").rpartition(".")[2].replace("-", "_")
    for table in tables:
        model = getattr(resolved.job, table)
        given = model.model_dump() if hasattr(model, "model_dump") else model or {}
        yield from (f"{table}.{key}" for key in given if key.replace("-", "_") == name)


def _too_many_ranks(job: Job, launcher: Launcher, allocation: Allocation) -> Iterator[Fault]:
    if launcher.most_ranks is None or allocation.world_size <= launcher.most_ranks:
        return
    nodes, each = allocation.nodes, allocation.world_size // allocation.nodes
    problem = (
        f"launcher {job.launcher!r} starts {launcher.most_ranks} process at most, and {nodes} x {each} were asked for"
    )
    if nodes > 1:
        hint = 'nodes = 1; or launcher = "torchrun" or "srun", which start one for each GPU'
        yield Fault(key="resources.nodes", problem=problem, hint=hint)
    else:
        yield Fault(key="resources.ranks_per_node", problem=problem, hint="remove the line")


def options_read(resolved: Resolved) -> frozenset[str] | None:
    """Options in the job's `args` whose values a rule of `prepare` reads. Of all other options only the names matter.

    None means that any value may be read: by a framework, by roles, or by the user's own batch template.
    """
    job, launcher = resolved.job, resolved.launcher
    if launcher.framework or job.roles or resolved.template is not None:
        return None
    return program_parallelism.options_read(job, launcher) if job.is_launchers else frozenset()


def resources(framework: str | None, job: Job) -> dict[str, int]:
    """Resources that the framework's own table sets for the job: `nodes`, `gpus_per_node`."""
    return get(framework).resources(job) if framework else {}
