"""Makes a run folder from a plan: whole under a temporary name, then renamed, so that a half-written run is never seen."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from kit.errors import RunError
from kit.plan import Plan
from kit.runs.manifest import Manifest
from kit.spec.paths import RunPaths

_PARTIAL = ".partial-"


def create(plan: Plan, manifest: Manifest) -> RunPaths:
    """Write the run folder of `plan`. RunError when it exists or the disk refuses."""
    final = plan.run_dir
    if final.exists():
        raise RunError(
            f"{final}: there is a run of that name already", hint="submit again: the run's id holds the second"
        )
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        _clean_leftovers(final.parent)
        partial = Path(tempfile.mkdtemp(prefix=f"{_PARTIAL}{os.getpid()}-", dir=final.parent))
    except OSError as error:
        raise RunError(
            f"{final.parent}: cannot be written: {error.strerror}", hint="set paths.runs of the cluster"
        ) from None
    try:
        write_files(plan, partial)
        for source, name in plan.copies:
            shutil.copytree(source, partial / name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        for name in plan.folders:
            (partial / name).mkdir(parents=True, exist_ok=True)
        manifest.write(RunPaths(partial).manifest)
        partial.chmod(0o755)
        partial.rename(final)
    except OSError as error:
        raise RunError(f"{final}: cannot be written: {error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return RunPaths(final)


def write_files(plan: Plan, folder: Path) -> list[Path]:
    """Write the plan's files under `folder` and return their paths."""
    written = []
    for file in plan.files:
        path = folder / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text, encoding="utf-8")
        path.chmod(file.mode)
        written.append(path)
    return written


def remove(run_dir: Path) -> None:
    """Remove a run folder that was never submitted."""
    shutil.rmtree(run_dir, ignore_errors=True)


def _clean_leftovers(parent: Path) -> None:
    """Remove what a killed `kit submit` left: partial folders whose process is gone."""
    for left in parent.glob(f"{_PARTIAL}*"):
        pid = left.name.removeprefix(_PARTIAL).partition("-")[0]
        alive = pid.isdigit() and Path(f"/proc/{pid}").exists()
        if not alive:
            with contextlib.suppress(OSError):
                shutil.rmtree(left)
