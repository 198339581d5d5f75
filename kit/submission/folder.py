"""Writes the files of a run folder from its plan."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kit.files import untrusted_files
from kit.planning.plan import Plan
from kit.record import secret
from kit.record.manifest import Manifest
from kit.schema.run_paths import RunPaths


@dataclass(frozen=True)
class Like:
    """A complete run folder. Another one gets hard links to its files where these are the same."""

    plan: Plan
    folder: Path


def fill(
    folder: Path,
    plan: Plan,
    manifest: Manifest,
    *,
    secrets: Mapping[str, str] | None = None,
    like: Like | None = None,
    durable: bool = True,
    patch: str = "",
) -> None:
    """Write all initial files of a run into `folder`; files of an earlier start are replaced. durable: as in Manifest.write.

    patch: the difference between its workspace and the commit.
    """
    write_files(plan, folder, like=like)
    for _, name in plan.copies:
        shutil.rmtree(folder / name, ignore_errors=True)
    for source, name in plan.copies:
        if like is None or like.plan.copies != plan.copies:
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(
                source,
                folder / name,
                dirs_exist_ok=True,
                ignore=ignore,
                copy_function=untrusted_files.copy_sharing_blocks,
            )
        elif not (folder / name).exists():
            shutil.copytree(like.folder / name, folder / name, copy_function=_link)
    for name in plan.folders:
        (folder / name).mkdir(parents=True, exist_ok=True)
    if patch:
        path = RunPaths(folder).patch
        path.unlink(missing_ok=True)
        if like:
            _link(RunPaths(like.folder).patch, path)
        else:
            path.write_text(patch, encoding="utf-8", errors="surrogateescape")
            path.chmod(0o600)
    manifest.write(RunPaths(folder).manifest, durable=durable)
    secret.write(folder, secrets or {})


def write_files(plan: Plan, folder: Path, *, like: Like | None = None) -> list[Path]:
    """Write the plan's files under `folder` and return their paths. An existing file is replaced, not overwritten in place."""
    fresh = not folder.is_dir() or not any(folder.iterdir())
    for name in dict.fromkeys(file.name.rpartition("/")[0] for file in plan.files):
        (folder / name).mkdir(parents=True, exist_ok=True)
    shared = {file.name: file for file in like.plan.files} if like else {}
    written = []
    for file in plan.files:
        path = folder / file.name
        if not fresh:
            path.unlink(missing_ok=True)
        if like and shared.get(file.name) == file:
            _link(like.folder / file.name, path)
        else:
            untrusted_files.write_text(path, file.text)
            path.chmod(file.mode)
        written.append(path)
    return written


def _link(source: str | Path, target: str | Path) -> str | Path:
    """Make a hard link, or a copy on file systems without links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target
