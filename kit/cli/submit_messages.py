"""Prints what a submit tells of its jobs, before and after."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kit.files.safe_text import clean

if TYPE_CHECKING:
    from kit.errors import Fault
    from kit.forecast.answers import WhenAnswer
    from kit.forecast.submit_forecast import Outlook
    from kit.planning.plan import Plan
    from kit.record.manifest import Manifest
    from kit.submission.prepare_run import Prepared
    from kit.sweeps.shared_plans import Kind


# With more roles than this, a submit does not list each of them.
_ROLES_NAMED = 8


def show_warnings(jobs: Iterable[Prepared | Kind]) -> None:
    """Print warnings about jobs that will run, but perhaps not as intended; each once, for any number of jobs."""
    _warn(one for job in jobs for one in job.warnings)


def show_arguments(jobs: Iterable[Prepared]) -> None:
    """Print what the command line changes in the program's arguments; each line once."""
    from kit.config.program_arguments import changes, twins

    lines: dict[str, None] = {}
    for job in jobs:
        resolved = job.resolved
        if resolved.args_change is None:
            continue
        found = [f"args: {line}" for line in changes(*resolved.args_change)]
        lines |= dict.fromkeys(found or ["args: nothing changes: the job has these words already"])
        lines |= dict.fromkeys(
            f"warning: {line}" for line in twins(resolved.args_change[1], resolved.words, resolved.job.command or ())
        )
    for line in lines:
        print(f"kit: {clean(line)}", file=sys.stderr)


def show_advice(jobs: Iterable[Prepared]) -> None:
    """Print what Slurm's topology makes slow, which image no node can run, what others could change, which mounts are missing, and
    which variables stay behind.
    """
    from kit.slurm import parallel_group_fit
    from kit.submission import warnings

    jobs = [*jobs]
    show_left_behind(jobs)
    for line in dict.fromkeys(filter(None, (warnings.describe_watch(job.resolved.job) for job in jobs))):
        print(f"kit: {line}", file=sys.stderr)
    for job in jobs:
        _warn(parallel_group_fit.warnings(job.plan, env=job.env))
        _warn(warnings.warn_of_architecture(job.plan, env=job.env))
        if job.host.shares_files:
            _warn(warnings.warn_of_others(job.plan))
            _warn(warnings.warn_of_mounts(job.plan))


def show_left_behind(jobs: Iterable[Prepared]) -> None:
    """Print once which variables of this shell look as if they were meant for the ranks, which do not get them."""
    from kit.submission.warnings import warn_of_variables

    _warn(one for job in jobs if (one := warn_of_variables(job.resolved, os.environ)))


def outlooks(jobs: Iterable[Prepared]) -> list[Outlook]:
    """The forecast of each job before its submit. ConfigError for a job that cannot fit into its nodes."""
    from kit.forecast import submit_forecast

    seen = [submit_forecast.look(job) for job in jobs]
    for one in seen:
        submit_forecast.refuse(one)
        _warn(submit_forecast.warnings(one))
    return seen


def _warn(found: Iterable[Fault]) -> None:
    for one in dict.fromkeys(found):
        print(f"kit: warning: {one}", file=sys.stderr)


def show_outlook(outlook: Outlook, start: WhenAnswer | None) -> None:
    """Print the forecast of a job's start and end."""
    from kit.forecast import answers, submit_forecast

    begins = start.start.expected if start and start.start else None
    lines = [answers.line(start)] if start else []
    for line in (*lines, *submit_forecast.sentences(outlook, start=begins)):
        print(f"forecast: {clean(line)}", file=sys.stderr)


def after_an_interrupt(ready: Prepared) -> str:
    """Whether a submit that Ctrl-C interrupted was complete. A refused or interrupted submit leaves no folder."""
    run_dir = ready.plan.run_dir
    if not ready.host.shares_files:
        return f"'kit status {ready.plan.run_id}' tells whether the job was submitted"
    if not run_dir.is_dir():
        return "nothing was submitted"
    return f"the job was submitted: 'kit logs -f {run_dir.name}' shows it, 'kit cancel {run_dir.name}' ends it"


def announced(manifest: Manifest) -> str:
    """The line that a submit prints about its job."""
    from kit.schema.world_size_text import world_text

    where = f"runtime {manifest.runtime}" + (f", image {manifest.image_digest}" if manifest.image_digest else "")
    nodes = "1 node" if manifest.nodes == 1 else f"{manifest.nodes} nodes"
    return f"job {manifest.job_id}: {nodes} on {manifest.cluster}, {world_text(manifest.world_sizes)}; {where}"


def following(made: Plan) -> list[str]:
    """The command lines that follow a run's logs: all of them, and those of each role."""
    whole = f"kit logs {made.run_id} -f"
    roles = [f"kit logs {made.run_id} {placed.name} -f" for placed in made.roles if placed.folder]
    return [whole, *roles] if len(roles) <= _ROLES_NAMED else [whole]
