"""kit submit and kit render of a job file with [stages]."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kit.runs.manifest import Manifest
    from kit.workflow.stages import PreparedStage


def staged(job: Path) -> bool:
    """Whether a job file has stages."""
    from kit import config

    return any(table.get("stages") for table, _ in config.job_files(_file(job)))


def prepared(
    job: Path, cluster: str | None, containers: bool, overrides: list[str] | None
) -> tuple[PreparedStage, ...]:
    """The plans of all stages."""
    from kit import config
    from kit.workflow import stages

    sources = config.read_job(_file(job), cluster=cluster, overrides=list(overrides or []))
    return stages.prepare(sources, containers=containers)


def submit(found: tuple[PreparedStage, ...], *, wait: bool, as_json: bool) -> None:
    """Submit all stages and print their run folders; with `wait`, wait for each in its order."""
    from kit.cli import runs
    from kit.workflow import stages

    made: dict[str, Manifest] = {}

    def say(name: str, one: Manifest) -> None:
        made[name] = one
        print(f"stage {name}: job {one.job_id}", file=sys.stderr)

    folders = stages.submit_all(found, say=say)
    if as_json:
        print(json.dumps({name: one.model_dump(mode="json") for name, one in made.items()}, indent=2))
    else:
        for folder in folders:
            print(folder)
    for folder in folders if wait else ():
        runs.wait_run(folder)


def _file(job: Path) -> Path:
    return job / "job.toml" if job.is_dir() else job
