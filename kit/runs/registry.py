"""Finds runs: every folder that a cluster file names for runs is looked through."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

from kit import config, data_folders
from kit.errors import ConfigError, RunError
from kit.runs.manifest import read
from kit.runs.status import events
from kit.slurm.client import JobId
from kit.spec.cluster import Cluster
from kit.spec.paths import RunPaths

# Where a sweep keeps the run folders of its points.
POINTS = "points"


def folder_of(cluster: Cluster, project: Path) -> Path:
    """Where runs on `cluster` are made for this user. Links are kept: other nodes know the path by its name."""
    known = {
        "project": str(project),
        "user": getpass.getuser(),
        "home": str(Path.home()),
        "data": str(data_folders.user_data()),
    }
    text = cluster.paths.runs
    for word, value in known.items():
        text = text.replace(f"{{{word}}}", value)
    return Path(os.path.abspath(text))  # noqa: PTH100 - resolve() would follow links


def folders(project: Path) -> list[Path]:
    """The runs folders of all clusters that this project knows; a cluster file that cannot be read is passed over here."""
    found = []
    for name in data_folders.names("clusters", project_dir=project):
        try:
            entry = data_folders.find("clusters", name, project_dir=project)
            found.append(folder_of(config.load_model(entry.path, Cluster), project))
        except ConfigError:
            continue
    return list(dict.fromkeys(found))


def find_all(folders: list[Path]) -> list[Path]:
    """All run folders, those of sweeps' points too, oldest first."""
    inside = [p for folder in folders if folder.is_dir() for p in folder.iterdir() if not p.name.startswith(".")]
    inside += [p for sweep in inside if (sweep / POINTS).is_dir() for p in (sweep / POINTS).iterdir()]
    found = [p for p in inside if RunPaths(p).manifest.is_file()]
    return sorted(found, key=lambda p: (RunPaths(p).job.stat().st_mtime, p.name))


def find_one(name: str | None, folders: list[Path]) -> Path:
    """A run by its folder, id, unique start of an id, or Slurm job id; without a name, the newest. RunError otherwise."""
    if name is not None and RunPaths(Path(name)).manifest.is_file():
        return Path(name).resolve()
    known = find_all(folders)
    if name is None:
        if not known:
            raise RunError(f"no runs yet under {_listed(folders)}", hint="'kit submit' makes one")
        return known[-1]
    matching = [p for p in known if p.name == name] or [p for p in known if p.name.startswith(name)]
    if not matching and name.replace("_", "").isdigit():
        # Another cluster, or this one made anew, may have given the same number before: the newest is meant.
        matching = [p for p in known if str(job_id_of(p)) == name][-1:]
    if len(matching) == 1:
        return matching[0]
    if matching:
        hint = "such as " + ", ".join(p.name for p in matching[-3:])
        if {p.parent for p in matching} == {matching[0].parent} and matching[0].parent.name == POINTS:
            hint = f"'kit results {matching[0].parent.parent.name}' shows all points of that sweep"
        raise RunError(f"{name}: {len(matching)} runs start with it", hint=hint)
    raise RunError(f"{name}: no such run under {_listed(folders)}", hint="'kit runs' lists the runs")


def job_id_of(run_dir: Path) -> JobId | None:
    """The Slurm job of a run: from the manifest, else from what the batch script recorded."""
    job_id = read(RunPaths(run_dir).manifest).slurm_id
    if job_id is not None:
        return job_id
    return next((int(str(e["job_id"])) for e in events(run_dir)), None)


def _listed(folders: list[Path]) -> str:
    return ", ".join(map(str, folders)) or "any folder"
