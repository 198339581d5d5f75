"""Renders the migrated job, and says where its batch script differs from the one that was read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from kit import config
from kit.data_folders import Entry
from kit.errors import ConfigError, KitError
from kit.migrate.report import Migration
from kit.planning import rank_files, sbatch_header, steps
from kit.planning.plan import Plan
from kit.schema import sbatch_lines
from kit.schema.cluster import Cluster
from kit.submission.prepare_run import prepare_sources

_SHOWN = ("--nodes=", "--ntasks-per-node=", "--cpus-per-task=", "--mem=", "--gpus-per-node=", "--gres=")


def compare(text: str, job_file: Path, cluster: str | None, report: Migration, *, own_entry: Entry | None) -> None:
    """Write the differences into the report. A job that cannot be planned gives the faults instead, and is not whole.

    own_entry: the cluster file that this migration has written, if it is the only one.
    """
    try:
        sources = config.read_job(job_file, cluster=cluster)
        if own_entry:
            sources = replace(sources, cluster=own_entry, place=config.load_model(own_entry.path, Cluster))
        plan = prepare_sources(sources, containers=False).plan
    except ConfigError as error:
        report.open += [f"the job is refused on this cluster: {line}" for line in str(error).splitlines() if line]
    except KitError as error:
        report.open.append(f"the job was not rendered: {error}")
    else:
        report.differences += [*_of_header(text, plan), *_of_ranks(plan, report)]


def _of_ranks(plan: Plan, report: Migration) -> Iterator[str]:
    """How srun starts the ranks, how they meet, and the variables that cluster and launcher add."""
    decided = plan.decisions
    words = steps.role_step(decided, decided.main)
    yield f"srun: {' '.join(takewhile(lambda word: word.startswith('--'), words[1:]))}"
    yield f"rendezvous: {decided.job.rendezvous or 'static'}, at the job's first node; logs: {decided.paths.output}"
    mine = report.job.get("env", {})
    role = decided.main.role
    env = rank_files.program_env(decided, role.env, gpus=role.gpus != ())
    added = {name: value for name, value in env.items() if mine.get(name) != value}
    if added:
        yield f"environment: added by the cluster and the launcher: {' '.join(f'{n}={v}' for n, v in added.items())}"
    yield from (f"warning: {fault}" for fault in plan.warnings)


def _of_header(text: str, plan: Plan) -> Iterator[str]:
    script = next(file.text for file in plan.files if file.name == "batch.sh")
    mine = {name: value for name, _, value in (option[2:].partition("=") for option in sbatch_header.header(script))}
    asked = sbatch_lines.options(text)
    sizes = " ".join(option for option in sbatch_header.header(script) if option.startswith(_SHOWN))
    given = " ".join(f"--{name}={value}" for name, value in asked.items() if name in sbatch_lines.SIZES)
    yield f"sizes: the script has {given or 'none'}; the job has {sizes}"
    for name in (*asked, *(name for name in mine if name not in asked)):
        if name in sbatch_lines.SIZES or asked.get(name) == mine.get(name):
            continue
        if name in asked and name in mine:
            yield f"--{name}: {asked[name] or 'set'} in the script, {mine[name] or 'set'} in the job"
        elif name in mine:
            yield f"--{name}: not in the script, {mine[name] or 'set'} in the job"
        else:
            yield f"--{name}: {asked[name] or 'set'} in the script, not in the job"
