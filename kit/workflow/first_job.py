"""Makes the job of a folder that has no job file yet: its program, data folders, and the GPUs of the cluster."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit import config, data_folders
from kit.allocation import minutes
from kit.config import toml_file
from kit.data_folders import Entry
from kit.errors import UsageError, nearest
from kit.files import untrusted_files
from kit.images import image_lock
from kit.planning.cpu_builds import cpu_build
from kit.record.manifest import BY_KIT_RUN
from kit.schema.cluster import Cluster
from kit.schema.launcher import Launcher
from kit.slurm import embedded
from kit.slurm.embedded import gpus
from kit.workflow import own_packages

HEAD = "# `kit render` shows what this becomes, `kit submit --follow` runs it. All keys: `kit schema job`, docs/guides/jobs.md.\n"
# Folders that hold data by their name. In the job's folder they would be copied at each submit, so they are mounted.
_DATA = ("data", "dataset", "datasets")
# Programs that are taken without a question, in this order; else the only one.
_PROGRAMS = ("train.py", "main.py")
_EMBEDDED_NODES = _EMBEDDED_GPUS = 2
_TIME = "01:00:00"
_IGNORED = ("runs/", "reports/")


@dataclass(frozen=True, kw_only=True)
class FirstJob:
    """What is known of the job. script: relative to the folder; None for the launcher's example. containers: False runs without."""

    folder: Path
    script: Path | None
    launcher: Entry
    image: str
    cluster: Entry
    args: tuple[str, ...] = ()
    containers: bool = True


def folder_of(script: Path) -> tuple[Path, Path]:
    """The job's folder for a program, and the program's path in it: the working folder, unless the program is elsewhere."""
    here, found = Path.cwd(), Path(os.path.normpath(Path.cwd() / script))
    folder = here if found.is_relative_to(here) else found.parent
    return folder, found.relative_to(folder)


def image_for(folder: Path, script: Path | None, project: Path) -> str:
    """The name of the default image: train-cpu if it has all packages that the folder names, else one of the folder's own."""
    needs = own_packages.read_needs(folder) if script is not None else None
    return own_packages.name_for(needs, job_name(folder), project) if needs else own_packages.BASE


def write_image(asked: FirstJob, say: Callable[[str], None]) -> Path | None:
    """Write the folder of the image with the program's packages, and say what it cannot take; None if no image is needed."""
    needs = own_packages.read_needs(asked.folder) if asked.script is not None else None
    # An image that was named is not made: the name may be a slip.
    if needs is None or asked.image != job_name(asked.folder):
        return None
    made = own_packages.write(needs, asked.image, data_folders.project(asked.folder))
    if made is not None:
        say(f"{made}: the packages of {needs.source}")
        for line in needs.left:
            say(f"kit: warning: {needs.source}: {line!r} is not in the image: no package by its name")
    return made


def table(asked: FirstJob, resources: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The job's table. resources: keys above those that the cluster suggests. UsageError for a script that is not there."""
    if asked.script is not None and not (asked.folder / asked.script).is_file():
        problem = f"{asked.script}: no such file in {asked.folder.resolve()}"
        near = nearest(asked.script.name, [path.name for path in (asked.folder / asked.script).parent.glob("*.py")])
        raise UsageError(problem, hint=f"name {near}, if you mean that" if near else "name your program's file")
    if asked.script is not None and toml_file.has_sbatch_options(_begin_of(asked.folder / asked.script)):
        problem = f"{asked.script}: this is a batch script, and a program of the ranks is expected"
        raise UsageError(problem, hint=f"kit migrate {shlex.quote(str(asked.folder / asked.script))}")
    starts = config.load_model(asked.launcher.path, Launcher)
    job: dict[str, Any] = {"name": job_name(asked.folder), "launcher": asked.launcher.name, "image": asked.image}
    if asked.script is not None:
        job["script"] = str(asked.script)
    if asked.args:
        job["args"] = list(asked.args)
    elif asked.script is None and asked.launcher.name == "ddp":
        job["args"] = ["--epochs", "12"]
    if mounts := data_mounts(asked.folder) if asked.containers and asked.script is not None else []:
        job["mounts"] = mounts
    if not asked.containers:
        del job["image"]
        # Ranks do not have the PATH of this shell.
        if venv := os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX"):
            job["python"] = f"{venv}/bin/python"
    return {**job, "resources": {**_resources(asked, starts), **(resources or {})}}


def _begin_of(path: Path) -> str:
    """The first lines of a program: a header for sbatch is at the top."""
    return untrusted_files.head(path, 4096).decode(errors="replace")


def with_overrides(job: dict[str, Any], overrides: Sequence[str], folder: Path, cluster: str | None) -> dict[str, Any]:
    """The table with the keys of --set in it, as a job file has them. ConfigError with all faults of the job."""
    made = config.job_of(job, folder / BY_KIT_RUN, cluster=cluster, overrides=overrides).resolve()
    taken = made.job.model_dump(mode="json")
    for text in overrides:
        # A value such as 1 is text where the key takes text; a file has to say that.
        found: Any = taken
        table, path = config.parse_overrides([text]), text.partition("=")[0].strip().split(".")
        for part in path:
            found = found.get(part) if isinstance(found, dict) else None
        if isinstance(found, str):
            table = {path[-1]: found}
            for part in reversed(path[:-1]):
                table = {part: table}
        job = config.merge(job, table)
    return job


def job_name(folder: Path) -> str:
    """A job's name after its folder."""
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "first"
    return name if name[0].isalpha() else f"job-{name}"


def data_mounts(folder: Path) -> list[dict[str, Any]]:
    """A read-only mount for each data folder, at the place where the program finds it without a container."""
    found = [name for name in _DATA if (folder / name).is_dir()]
    return [{"source": name, "target": f"/workspace/{name}", "flags": ["ro"]} for name in found]


def own_program(folder: Path) -> Path | None:
    """The program of a folder: train.py, main.py, or its only Python file."""
    files = sorted(path.name for path in folder.glob("*.py") if path.is_file()) if folder.is_dir() else []
    named = [name for name in _PROGRAMS if name in files] or (files if len(files) == 1 else [])
    return Path(named[0]) if named else None


def text_of(job: dict[str, Any]) -> str:
    """The text of job.toml, with the place of the program's arguments in it. Each mount is on one line."""
    import tomli_w

    text = HEAD + tomli_w.dumps({key: value for key, value in job.items() if key != "mounts"})
    lines = [f"mounts = [{', '.join(map(_inline, job['mounts']))}]"] if "mounts" in job else []
    if "script" in job and "args" not in job:
        lines.append('# args = ["--lr", "0.1"]')
    return text.replace("\n[resources]\n", "".join(f"{line}\n" for line in lines) + "\n[resources]\n", 1)


def _inline(mount: dict[str, Any]) -> str:
    # A JSON string or list of strings is one of TOML, too.
    return f"{{ {', '.join(f'{key} = {json.dumps(value, ensure_ascii=False)}' for key, value in mount.items())} }}"


def ignore_outputs(project: Path) -> list[str]:
    """Add the folders of the kit's outputs to the project's .gitignore. Returns the lines that were not there."""
    path = project / ".gitignore"
    text = untrusted_files.read_text(path) if path.is_file() else ""
    there = {line.strip().strip("/") for line in text.splitlines()}
    lines = [line for line in _IGNORED if line.strip("/") not in there]
    if lines:
        glue = "" if not text or text.endswith("\n") else "\n"
        path.write_text(text + glue + "".join(f"{line}\n" for line in lines), encoding="utf-8")
    return lines


def has_cpu_torch(asked: FirstJob) -> bool:
    """Whether the job's image has a build of torch for CPUs, by its lock; an image without a lock will be based on train-cpu."""
    if not asked.containers:
        return False
    project = data_folders.project(asked.folder)
    place = image_lock.find(asked.image, project=project) or image_lock.find(own_packages.BASE, project=project)
    return place is not None and cpu_build(image_lock.read_lock(place).packages) is not None


def _resources(asked: FirstJob, starts: Launcher) -> dict[str, Any]:
    cluster = config.load_model(asked.cluster.path, Cluster)
    row = cluster.qos.get(cluster.default_qos or "")
    nodes, of_a_node = _shape(cluster, asked.cluster.name)
    if row and row.max_gpus_per_node is not None:
        of_a_node = min(of_a_node, row.max_gpus_per_node)
    # With torch for CPUs in it, the image has no use for GPUs, and the job would be refused.
    gpus = 0 if cluster.computes_on_gpus and has_cpu_torch(asked) else of_a_node
    resources: dict[str, Any] = {"nodes": nodes, "gpus_per_node": gpus}
    if starts.most_ranks is not None:
        resources["nodes"] = 1
    if starts.programs:
        del resources["nodes"]  # [sft] and [rl] say it
    # An hour, or less where the cluster's own limit for such a job is less.
    limits = (cluster.defaults.get("resources", {}).get("time"), row.time if row else None)
    return {**resources, "time": min((_TIME, *(limit for limit in limits if limit)), key=minutes)}


def _shape(cluster: Cluster, name: str) -> tuple[int, int]:
    """Nodes, and GPUs of each: of the embedded cluster as it is, or as it would start; of any other cluster, one whole node."""
    if not cluster.embedded:
        return 1, cluster.node.gpus
    running = embedded.find(name)
    if running is not None:
        most = _EMBEDDED_GPUS if running.has_placeholders else running.gpus_per_node
        return min(_EMBEDDED_NODES, len(running.nodes)), min(most, running.gpus_per_node)
    real = len(gpus.real_devices())
    # Two nodes would share the only GPU, which NCCL refuses.
    nodes = min(_EMBEDDED_NODES, real or _EMBEDDED_NODES)
    return nodes, real // nodes if real else _EMBEDDED_GPUS
