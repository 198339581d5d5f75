"""Stages of one job file. Each stage is an ordinary run. A stage that waits for another one can read the other run's folder.

`{stages.pretrain}` in a stage's script, args or env becomes the path of that folder, as the program sees it. It is read-only.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from kit import config
from kit.config import Resolved, Sources
from kit.errors import ConfigError, Fault, SlurmError, nearest
from kit.record.manifest import Manifest
from kit.schema.stages import Stage
from kit.slurm import client
from kit.submission import prepare_run, submit
from kit.submission.prepare_run import Prepared
from kit.workflow.dependencies import After, term, with_options

TARGET = "/kit/stages"
_ONE_WAY = "remove an `after` from one of them"
_PLACE = re.compile(r"\{stages\.([^{}]*)\}")


@dataclass(frozen=True, kw_only=True)
class PreparedStage:
    """A stage with its plan."""

    name: str
    prepared: Prepared
    after: tuple[After, ...]


def prepare_job(
    job: Path, *, cluster: str | None, overrides: list[str], containers: bool = True, debug: bool = False
) -> Prepared | tuple[PreparedStage, ...]:
    """Read and plan a job file, or the job.toml of a folder: one job, or all stages of one that has them."""
    sources = config.read_job(config.job_path(job), cluster=cluster, overrides=overrides)
    if any(table.get("stages") for table, _ in sources.files):
        return prepare_stages(sources, containers=containers)
    return prepare_run.prepare_sources(sources, containers=containers, debug=debug)


def prepare_stages(sources: Sources, *, containers: bool = True) -> tuple[PreparedStage, ...]:
    """Plan all stages of a job. Each stage comes after the stages that it waits for. ConfigError lists all faults of the order."""
    base = sources.resolve()
    order = _order(base.job.stages, base.job_file)
    by_name: dict[str, PreparedStage] = {}
    faults: list[Fault] = []
    for name in order:
        waits_for = _afters(base.job.stages[name])
        if any(one.name not in by_name for one in waits_for):
            continue  # for one with faults, which are enough to stop here
        folders = {one.name: by_name[one.name].prepared.plan.run_dir for one in waits_for}
        try:
            prepared = _prepare_one(sources, base, name, folders, containers=containers)
        except ConfigError as error:
            if not error.faults:
                raise
            faults += error.faults
            continue
        by_name[name] = PreparedStage(name=name, prepared=prepared, after=tuple(waits_for))
    if faults:
        raise ConfigError.of(*faults)
    return tuple(by_name.values())


def _prepare_one(
    sources: Sources, base: Resolved, name: str, folders: Mapping[str, Path], *, containers: bool
) -> Prepared:
    label = f"{base.job_file} [stages.{name}]"
    keys = {"name": f"{base.job.name}-{name}", **(base.job.stages[name].model_extra or {})}
    keys = _with_folders(sources, keys, folders, contained=containers, file=label)
    resolved = sources.resolve(keys, label=label)
    resolved = replace(resolved, job=resolved.job.model_copy(update={"stages": {}}))
    return prepare_run.prepare_resolved(resolved, sources.job_file, containers=containers)


def submit_all(stages: tuple[PreparedStage, ...], *, say: Callable[[str, Manifest], None]) -> list[Path]:
    """Submit the stages in order and return their run folders. If Slurm refuses a stage, the stages before it are cancelled.

    say: called with the name and manifest of each stage when it is submitted.
    """
    for stage in stages:
        client.test_only(stage.prepared.plan.text_of("batch.sh"), env=stage.prepared.env)
    sent: dict[str, Manifest] = {}
    try:
        for stage in stages:
            terms = [term(one, _jobs(sent[one.name])) for one in stage.after]
            sent[stage.name] = submit.submit(with_options(stage.prepared, terms))
            say(stage.name, sent[stage.name])
    except BaseException:
        for stage in reversed(stages):
            if stage.name in sent:
                with contextlib.suppress(SlurmError):
                    client.cancel_each(_jobs(sent[stage.name]), env=stage.prepared.env)
        raise
    return [stage.prepared.folder for stage in stages]


def _jobs(made: Manifest) -> tuple[int, ...]:
    assert made.job_id is not None
    return (made.job_id, *made.links)


def _afters(stage: Stage) -> list[After]:
    return [After(name, kind or "ok") for name, _, kind in (text.partition(":") for text in stage.after)]


def _order(stages: Mapping[str, Stage], file: str) -> tuple[str, ...]:
    """Sort the stages: each comes after the stages that it waits for."""
    faults = []
    for name, stage in stages.items():
        for after in _afters(stage):
            if after.name not in stages:
                faults.append(
                    Fault(
                        file=file,
                        key=f"stages.{name}.after",
                        problem=f"there is no stage {after.name!r} to wait for",
                        allowed=", ".join(others := [other for other in stages if other != name]),
                        hint=f'after = ["{near}"]'
                        if (near := nearest(after.name, others))
                        else f"add [stages.{after.name}]",
                    )
                )
    if faults:
        raise ConfigError.of(*faults)
    try:
        return tuple(TopologicalSorter({n: {a.name for a in _afters(s)} for n, s in stages.items()}).static_order())
    except CycleError as error:
        circle = " -> ".join(error.args[1])
        raise ConfigError.of(
            Fault(file=file, key="stages", problem=f"the stages wait for each other: {circle}", hint=_ONE_WAY)
        ) from None


def _with_folders(
    sources: Sources, keys: dict[str, Any], seen: Mapping[str, Path], *, contained: bool, file: str
) -> dict[str, Any]:
    """The stage's keys, with each {stages.NAME} replaced by that stage's folder. In a container the folders are mounted."""
    below = sources.merged(keys)
    inside = {name: f"{TARGET}/{name}" if contained else str(path) for name, path in seen.items()}
    faults: list[Fault] = []

    def put(text: str, key: str) -> str:
        for name in _PLACE.findall(text):
            if name not in inside:
                problem = f"{{stages.{name}}} is the folder of a stage that this one does not wait for"
                hint = f'after = ["{name}"] in this stage'
                faults.append(Fault(file=file, key=key, problem=problem, allowed=", ".join(inside), hint=hint))
        return _PLACE.sub(lambda found: inside.get(found[1], ""), text)

    changed = dict(keys)
    if isinstance(below.get("args"), list):
        changed["args"] = [
            put(word, f"args[{n}]") if isinstance(word, str) else word for n, word in enumerate(below["args"])
        ]
    if isinstance(below.get("script"), str):
        changed["script"] = put(below["script"], "script")
    if isinstance(below.get("env"), Mapping):
        changed["env"] = {n: put(v, f"env.{n}") if isinstance(v, str) else v for n, v in below["env"].items()}
    if faults:
        raise ConfigError.of(*faults)
    if contained and inside:
        own = [{"source": str(seen[name]), "target": place, "flags": ["ro"]} for name, place in inside.items()]
        changed["mounts"] = [*below.get("mounts", []), *own]
    return changed
