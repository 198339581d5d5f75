"""Makes the folders for the output of batch scripts. slurmd does not make them, and without them a job fails with no message."""

from __future__ import annotations

import contextlib
import getpass
from collections.abc import Iterable, Iterator
from pathlib import Path

from kit.errors import RunError
from kit.planning.sbatch_header import header
from kit.schema import slurm_filename_pattern
from kit.schema.run_paths import RunPaths

_FILES = ("output", "error")
# Slurm names a job after its script where the header, of a template of the user's own, does not.
_NAME = RunPaths(Path()).batch.name


@contextlib.contextmanager
def folders(scripts: Iterable[str]) -> Iterator[None]:
    """Make the folders for these batch scripts' output, outside their run folders.

    If the block fails, new folders are removed again. RunError, naming slurm.output, if a folder cannot be made.
    """
    new: list[Path] = []
    try:
        for folder in dict.fromkeys(one for script in scripts for one in _folders_of(script)):
            new += _make(folder)
        yield
    except BaseException:
        for made in reversed(new):
            with contextlib.suppress(OSError):
                made.rmdir()
        raise


def _folders_of(script: str) -> list[Path]:
    """The output folders in a script's header. Folders inside run folders, and so those of an array's tasks, are left out."""
    options = dict(option.removeprefix("--").partition("=")[::2] for option in header(script))
    files = [options[name] for name in _FILES if name in options]
    return [
        slurm_filename_pattern.folder(file, job_name=options.get("job-name", _NAME), user=getpass.getuser())
        for file in files
        if "/%a/" not in file
    ]


def _make(folder: Path) -> list[Path]:
    """Make a folder and its missing parents; return the new ones, the outermost first."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(
            f"{folder}: cannot be made: {error.strerror}", hint="set slurm.output and slurm.error to a folder of yours"
        ) from None
    return missing[::-1]
