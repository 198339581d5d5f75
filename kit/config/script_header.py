"""Reads the #SBATCH header of a batch script that is not the kit's, as keys of a job."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kit.config.toml_file import Table, is_batch_text
from kit.errors import ConfigError, Fault
from kit.files import untrusted_files
from kit.schema import own_batch_script, sbatch_lines, sbatch_sizes

# Options whose value is a key of [slurm] as it is. The others of the header reach Slurm by the script's own lines.
_SAME = ("account", "partition", "qos")
# The forms of sbatch(1) that are numbers; "infinite" is one, too.
_TIME = re.compile(r"[0-9][0-9:-]*")
# Larger than any batch script of a person.
_MOST_BYTES = 16 << 20
_REFUSED = {
    "array": ("an array has many ends, and a run has one", "kit sweep, with a [sweep] table in job.toml"),
    "wait": ("sbatch would not answer before the job has ended", "remove it, and run kit submit --wait"),
}
_SEVERAL = ("a heterogeneous job has several headers, and a run has one", "[roles] in job.toml")


def is_script(path: Path) -> bool:
    """Whether a path in place of a job file is a batch script: a file that begins as one, or has options for sbatch."""
    try:
        return path.is_file() and is_batch_text(untrusted_files.read_text(path, most=_MOST_BYTES))
    except OSError:
        return False


def job_of_script(path: Path) -> Table:
    """The keys of a job that runs a batch script as it is, on the nodes themselves. Its header is read as for any such script."""
    text = untrusted_files.read_text(path, most=_MOST_BYTES)
    name = sbatch_lines.options(text).get("job-name") or path.stem
    return {
        "name": sbatch_lines.name_of(name),
        "launcher": "srun",
        "command": [path.name],
        "slurm": {"template": path.name},
        "container": {"runtime": "bare"},
    }


def keys(file: str, text: str, *, inherit: Sequence[str]) -> Table:
    """What a script's header says about the size of the job and its place, as keys of a job; empty for a template.

    inherit: the job's own. ConfigError for options with which a script cannot be a run.
    """
    if own_batch_script.is_template(text):
        return {}
    if faults := [*_faults(text, file)]:
        raise ConfigError.of(*faults)
    asked = sbatch_lines.options(text)
    resources = _resources(asked)
    if _TIME.fullmatch(asked.get("time", "")):
        resources["time"] = asked["time"]
    slurm = {name: asked[name] for name in _SAME if asked.get(name)}
    names = _inherited(asked)
    found: Table = {"resources": resources, "slurm": slurm, "inherit": [*inherit, *names] if names else []}
    return {key: value for key, value in found.items() if value}


def _resources(asked: dict[str, str]) -> dict[str, Any]:
    """[resources] of a header that has sizes. Where a number is open, such as in --nodes=2-4, the least is taken."""
    counts = {name: asked[name] for name in sbatch_lines.SIZES if name in asked}
    if not counts:
        return {}
    if range_of_nodes := re.match(r"([1-9][0-9]*)-", counts.get("nodes", "")):
        counts["nodes"] = range_of_nodes[1]
    found: dict[str, Any] = {}
    sizes = sbatch_sizes.read_sizes(counts, found)
    tasks = {"ranks_per_node": sizes.tasks} if {"ntasks", "ntasks-per-node", "ntasks-per-gpu"} & counts.keys() else {}
    least = {"cpus_per_node": max(sizes.cpus or 0, sizes.tasks)}
    return {"nodes": sizes.nodes, "gpus_per_node": sizes.gpus, **tasks, **least}


def _inherited(asked: dict[str, str]) -> list[str]:
    """The names that --export takes from the submitter's shell."""
    names = (item for item in asked.get("export", "").split(",") if "=" not in item)
    return [name for name in names if re.fullmatch(r"[A-Za-z_]\w*", name) and name not in ("ALL", "NONE", "NIL")]


def _faults(text: str, file: str) -> Iterator[Fault]:
    if not text.startswith("#!"):
        problem = "Slurm takes no batch script whose first line does not begin with '#!'"
        yield Fault(file=file, key="line 1", problem=problem, hint="#!/bin/bash as the first line")
    for line in sbatch_lines.lines(text):
        key = f"line {line.number}"
        if line.separator:
            yield Fault(file=file, key=key, problem=_SEVERAL[0], hint=_SEVERAL[1])
        for name, _ in line.options:
            if name in _REFUSED:
                problem, hint = _REFUSED[name]
                yield Fault(file=file, key=key, problem=f"--{name}: {problem}", hint=hint)
