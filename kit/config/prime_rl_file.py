"""A configuration for prime-rl's rl_slurm or sft_slurm in place of a job file: its keys as keys of a job.

These commands are those of prime-rl's main branch of February 2026 (release 0.4). Their options keep their names; the file's own
keys about nodes, logs and folders have others here.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from kit.config.layers import merge
from kit.config.toml_file import Table
from kit.errors import ConfigError, Fault
from kit.schema.job import Job
from kit.schema.schema_base import NAME

PROGRAMS = "prime-rl-0.4"
# A file with one of these, and without a launcher, is for these commands.
_MARKS = ("job_name", "num_train_nodes", "num_infer_nodes", "num_nodes")
_OF_RL = ("num_train_nodes", "num_infer_nodes", "orchestrator", "trainer", "inference")
_COUNTS = ("gpus_per_node", "nodes_per_fsdp_group", "max_steps")
# What the kit does in another way: key -> why, and what to write.
_ELSEWHERE = {
    "project_dir": ("the project is the folder from which you submit", "remove the line"),
    "dry_run": ("a run is shown by an option of the command", "kit submit --dry-run, and remove the line"),
    "toml_files": ("files that build on others are named by another key", 'extends = "base.toml"'),
    "deployment": (
        "a release of prime-rl after 0.4; docs/guides/rl.md has the key of [rl] for each of its keys",
        'launcher = "rl", and [rl] programs = "prime-rl"',
    ),
}


def is_one(table: Mapping[str, Any]) -> bool:
    """Whether a file's keys are those of such a configuration."""
    return "launcher" not in table and any(mark in table for mark in _MARKS)


def job_of(table: Mapping[str, Any], file: str, *, project: Path) -> Table:
    """The keys of the job. ConfigError for keys that mean something which the kit does in another way.

    project: its .venv, if it has one, is the environment of the programs.
    """
    if faults := [*_faults(table, file)]:
        raise ConfigError.of(*faults)
    kind = _kind(table)
    left = copy.deepcopy({key: value for key, value in table.items() if key not in Job.model_fields})
    job: Table = {"name": NAME.nearest(str(left.pop("job_name", kind))), "launcher": kind}
    job |= {kind: {"programs": PROGRAMS, "gpus_per_node": 8}}
    if (project / ".venv/bin/activate").is_file():
        job |= {"setup": [f"source {project}/.venv/bin/activate"], "container": {"runtime": "bare"}, "python": "python"}
    # A file may have tables of the kit besides its own, such as [resources].
    return merge(_with(job, kind, left), {key: value for key, value in table.items() if key in Job.model_fields})


def overrides_of(given: Mapping[str, Any], table: Mapping[str, Any]) -> Table:
    """Keys of `--set` as keys of the job, by the file's names or the kit's. table: the file's keys."""
    own = {key: value for key, value in given.items() if key in Job.model_fields}
    left = copy.deepcopy({key: value for key, value in given.items() if key not in own})
    return merge(_with({}, _kind(table), left), own)


def _kind(table: Mapping[str, Any]) -> Literal["rl", "sft"]:
    return "rl" if any(key in table for key in _OF_RL) else "sft"


def _faults(table: Mapping[str, Any], file: str) -> Iterator[Fault]:
    for key, (why, line) in _ELSEWHERE.items():
        if key in table:
            yield Fault(file=file, key=key, problem=why, hint=line)


def _with(job: Table, kind: str, left: Table) -> Table:
    """The job with the keys that are left, each in its place. A key without a place is an option of the programs."""
    table: Table = job.setdefault(kind, {}) if left else {}
    for theirs, ours in (("hf_hub_offline", "hub_offline"), ("num_nodes", "num_train_nodes")):
        if theirs in left:
            table[ours] = left.pop(theirs)
    table |= {key: left.pop(key) for key in _COUNTS if key in left}
    for theirs in ("slurm_template", "template_path"):
        if theirs in left:
            job.setdefault("slurm", {})["template"] = left.pop(theirs)
    if "output_dir" in left:
        table["output_dir"] = _in_the_run(str(left.pop("output_dir")))
    _put_shared(job, table, left, kind)
    if kind == "sft":
        inner = table.setdefault("trainer", {}) if left else {}
        inner |= left
        return job
    return _with_roles(job, table, left)


def _in_the_run(folder: str) -> str:
    """A relative folder is in the run folder, since each run has one."""
    return folder if folder.startswith("/") else f"{{run}}/{folder}"


def _put_shared(job: Table, table: Table, left: Table, kind: str) -> None:
    """The tables that several programs share: [model], [log], [wandb], [ckpt]."""
    roles = ("trainer", "orchestrator") if kind == "rl" else ("trainer",)
    for name, places in (
        ("model", {"name": (table, "model")}),
        ("log", {"level": (table, "log_level")}),
        ("ckpt", {"interval": (job, "checkpoint.every"), "keep_last": (job, "checkpoint.keep")}),
    ):
        given = left.pop(name, None)
        if not isinstance(given, dict):
            if given is not None:
                left[name] = given
            continue
        for key, (into, place) in places.items():
            if key in given:
                above, _, last = place.rpartition(".")
                (into.setdefault(above, {}) if above else into)[last] = given.pop(key)
        if given or (name == "ckpt" and "checkpoint" not in job):
            of_roles = left if kind == "sft" else None
            for role in roles:
                inner = of_roles if of_roles is not None else left.setdefault(role, {})
                inner[name] = {**given, **inner.get(name, {})}
    if isinstance(left.get("wandb"), dict):
        table["wandb"] = left.pop("wandb")


def _with_roles(job: Table, table: Table, left: Table) -> Table:
    """The rest of an RL configuration."""
    broadcast = left.pop("weight_broadcast", None)
    if isinstance(broadcast, dict):
        table["weight_broadcast"] = broadcast.get("type", "filesystem")
        if "timeout" in broadcast and table["weight_broadcast"] == "nccl":
            for role in ("trainer", "orchestrator"):
                left.setdefault(role, {}).setdefault("weight_broadcast", {})["timeout"] = broadcast["timeout"]
    if "max_model_len" in left:
        left.setdefault("inference", {}).setdefault("model", {})["max_model_len"] = left.pop("max_model_len")
    parallel = left["inference"].pop("parallel", {}) if isinstance(left.get("inference"), dict) else {}
    if "dp" in parallel:
        # Theirs is that of one node's server, and here it is of all.
        parallel["dp"] *= int(left.get("num_infer_nodes", 1))
    if parallel:
        table["parallel"] = parallel
    table |= left
    return job
