"""Checks before submit that a job's programs exist. Otherwise the job would wait in the queue and fail with "no such file"."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from kit.errors import ConfigError, Fault, nearest
from kit.planning.plan import Plan
from kit.snapshots.scan import Scan
from kit.submission import workspace


def require(plan: Plan, scan: Scan | None, *, folder: Path | None = None) -> None:
    """ConfigError for each missing program of the job's folder. Programs in images and mounts are not checked.

    scan: the workspace that the run gets, if not the folder itself. folder: a snapshot of it that the run gets instead.
    """
    looked = folder or plan.decisions.resolved.job_dir
    faults = [fault for key, script in _scripts(plan) for fault in _faults(plan, scan, looked, key, script)]
    if faults:
        raise ConfigError.of(*faults, file=plan.decisions.resolved.job_file)


def _scripts(plan: Plan) -> Iterator[tuple[str, str]]:
    job = plan.decisions.job
    if job.script is not None and not job.is_launchers:
        yield "script", job.script
    for name, role in job.roles.items():
        if role.script is not None:
            yield f"roles.{name}.script", role.script


def _faults(plan: Plan, scan: Scan | None, folder: Path, key: str, script: str) -> Iterator[Fault]:
    if script.startswith("/") or _comes_later(plan, script):
        return
    path = folder / script
    if path.is_dir():
        problem = f"{script!r} is a folder, and a program is one file of it"
    elif why := workspace.left_out(scan, script):
        problem = f"{script!r} is in {folder}, and the run would not see it: {why}"
        yield Fault(
            key=key, problem=problem, hint=f"a rule '!/{script}' in the file that ignores it; or snapshot = false"
        )
        return
    elif path.exists():
        return
    else:
        problem = f"{script!r} is not there: no such file in {folder}"
    there = sorted(str(one.relative_to(folder)) for one in (path if path.is_dir() else path.parent).glob("*.py"))
    near = nearest(script, there, cutoff=0.3) or next(iter(there), "train.py")
    yield Fault(key=key, problem=problem, hint=f'{key.rpartition(".")[2]} = "{near}"')


def _comes_later(plan: Plan, script: str) -> bool:
    """Whether a mount covers the file, or a set-up line that names it may write it."""
    decisions = plan.decisions
    inside = PurePosixPath(decisions.paths.inside.workspace, script)
    lines = (
        *decisions.resolved.cluster.setup,
        *decisions.job.setup,
        *(line for one in decisions.job.lines.values() for line in one.lines),
    )
    return any(inside.is_relative_to(mount.target) for mount in decisions.resolved.mounts) or any(
        Path(script).name in line for line in lines if Path(script).name
    )
