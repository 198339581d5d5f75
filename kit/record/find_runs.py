"""Finds runs in all folders that cluster files name for runs."""

from __future__ import annotations

import getpass
import os
from pathlib import Path
from typing import TYPE_CHECKING

from kit import data_folders
from kit.errors import ConfigError, RunError
from kit.record import foreign_runs, index, known_files, unmade_points
from kit.record.run_facts import Facts
from kit.record.unmade_points import POINTS
from kit.ssh import run_folder_mirror as mirrors

if TYPE_CHECKING:
    from kit.schema.cluster import Cluster


def folder_of(cluster: Cluster, project: Path) -> Path:
    """This user's folder of runs for a cluster of this machine."""
    return filled(cluster.paths.runs, project)


def store_of(cluster: Cluster, project: Path) -> Path:
    """This user's image store for `cluster`: the one in its file, else KIT_STORE, else the user's own."""
    named = cluster.paths.store
    return data_folders.image_store() if named is None else filled(named, project)


def filled(text: str, project: Path) -> Path:
    """Fill in a path of a cluster file. Links are not resolved: other nodes know the path by its name."""
    known = {
        "project": str(project),
        "user": getpass.getuser(),
        "home": str(Path.home()),
        "data": str(data_folders.user_data()),
    }
    if text == "~" or text.startswith("~/"):
        text = known["home"] + text[1:]
    for word, value in known.items():
        text = text.replace(f"{{{word}}}", value)
    return Path(os.path.abspath(text))  # noqa: PTH100 - resolve() would follow links


def folders(project: Path) -> list[Path]:
    """The folders of runs of all clusters of this project. A cluster file that cannot be read is skipped.

    For a cluster over ssh, the folder in its mirror, without updating it.
    """
    run_folders = []
    for name in data_folders.names("clusters", project_dir=project):
        try:
            entry = data_folders.find("clusters", name, project_dir=project)
            known = known_files.cluster(entry.path)
            run_folders.append(_mirror_of(name, entry.path) if known.ssh else filled(known.runs, project))
        except ConfigError:
            continue
    return list(dict.fromkeys(run_folders))


def _mirror_of(name: str, path: Path) -> Path:
    from kit import config
    from kit.schema.cluster import Cluster

    return mirrors.find_mirror(name, config.load_model(path, Cluster)).runs


def find_all(folders: list[Path]) -> list[tuple[Path, Facts]]:
    """All runs with their facts, including points of sweeps; oldest first."""
    found = [one for folder in folders for one in index.runs(folder)]
    return sorted(found, key=lambda one: (one[1].submitted_at, one[0].name))


def find_one(name: str | None, folders: list[Path]) -> Path:
    """A run by its folder, id, unique start of an id, or Slurm job id; without a name, the newest of one's own that is
    not a shell, else of all.

    The folder of a point that waits is made, if it can be. RunError if there is no such run, and for another user's with links in
    place of folders.
    """
    found = _found(name, folders)
    foreign_runs.require_own_folders(found)
    unmade_points.make(found)
    return found


def _found(name: str | None, folders: list[Path]) -> Path:
    if name is None:
        return _newest(folders)
    if index.is_run(Path(name)):
        return Path(name).resolve()
    matching = [folder / name for folder in folders if _is_name(name) and index.is_run(folder / name)]
    matching = matching or [p for folder in folders for p in index.run_dirs(folder) if p.name.startswith(name)]
    if not matching and name.replace("_", "").isdigit():
        # Another cluster, or an earlier instance of this one, may have used the same number; take the newest run.
        matching = [path for path, one in find_all(folders) if str(one.job_id) == name][-1:]
    hint = ""
    if matching and {p.parent for p in matching} == {matching[0].parent} and matching[0].parent.name == POINTS:
        hint = f"'kit results {matching[0].parent.parent.name}' shows all points of that sweep"
    if found := only(name, matching, what="runs", hint=hint):
        return found
    raise RunError(f"{name}: no such run under {_listed(folders)}", hint="'kit runs' lists the runs")


def only(name: str, matching: list[Path], *, what: str, hint: str = "") -> Path | None:
    """The only one of `matching`, or the one that is called `name`; None if there are none. RunError if there are several.

    what: a plural noun for them. hint: by default some of their names.
    """
    exact = [path for path in matching if path.name == name]
    matching = exact or matching
    if len(matching) > 1:
        names = ", ".join(sorted(path.name for path in matching)[-3:])
        raise RunError(f"{name}: {len(matching)} {what} start with it", hint=hint or f"such as {names}")
    return matching[0] if matching else None


def _newest(folders: list[Path]) -> Path:
    """The user's newest readable run that is not a shell: nobody wants to look at a shell that has ended, or to cancel it.

    Where none is the user's own, the newest of all. Another user can date a run later than any.
    """
    newest = [path for path, one in find_all(folders) if not one.problem and not one.interactive]
    if not newest:
        raise RunError(f"no runs yet under {_listed(folders)}", hint="'kit submit' makes one")
    return next((path for path in reversed(newest) if not foreign_runs.is_foreign(path)), newest[-1])


def _is_name(name: str) -> bool:
    return name not in {"", ".", ".."} and os.sep not in name


def _listed(folders: list[Path]) -> str:
    return ", ".join(str(folder) for folder in folders if folder.is_dir()) or "the folders of this project's clusters"
