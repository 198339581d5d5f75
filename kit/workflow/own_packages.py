"""Finds the Python packages that a folder's program needs and that an image lacks."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path

from kit import data_folders
from kit.images import image_lock
from kit.images.build import first_image
from kit.schema.image import canonical
from kit.workflow import requirement_files
from kit.workflow.requirement_files import Needs

# The image that a new one builds on.
BASE = "train-cpu"


def read_needs(folder: Path) -> Needs | None:
    """The requirements in requirements.txt, else in pyproject.toml; None without either. UsageError for a broken file."""
    for name in ("requirements.txt", "pyproject.toml"):
        if (folder / name).is_file():
            return requirement_files.read_requirements(folder / name)
    return None


def beyond(needs: Needs, base: str, project: Path) -> list[str]:
    """The requirements whose packages are not in the lock of the image `base`. Without a lock, all of them."""
    place = image_lock.find(base, project=project)
    held: Mapping[str, str] = image_lock.read_lock(place).packages.pip if place else {}
    there = {canonical(name): version for name, version in held.items()}
    return [line for line in needs.lines if not _held(line, there)]


def name_for(needs: Needs, name: str, project: Path) -> str:
    """The image for a folder's program: BASE if it has all packages, else `name`, an image of the project's own."""
    own = name in data_folders.own_names("containers", project_dir=project)
    return name if own or beyond(needs, BASE, project) else BASE


def write(needs: Needs, name: str, project: Path) -> Path | None:
    """Write the folder of the image `name`, with these packages on top of BASE; return it. None if there is such an image."""
    if name in data_folders.names("containers", project_dir=project) or not beyond(needs, BASE, project):
        return None
    return first_image.write_image_folder(name, base=BASE, packages=needs.lines, project=project)


def remove(folder: Path) -> None:
    """Remove the folder of an image that `write` has just made, and containers/ if nothing else is in it."""
    shutil.rmtree(folder)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()


def conflicts(needs: Needs, base: str, project: Path) -> list[str]:
    """The requirements with == of packages that the image `base` has in another version, as `torch==2.9.0: 2.6.0`."""
    place = image_lock.find(base, project=project)
    held: Mapping[str, str] = image_lock.read_lock(place).packages.pip if place else {}
    there = {canonical(name): version for name, version in held.items()}
    # A lock for several Pythons names a package several times, each with a marker.
    held_names = {requirement_files.name_in(line) for line in needs.lines if _held(line, there)}
    named = [(line, requirement_files.name_in(line) or "") for line in needs.lines]
    return [
        f"{line.partition(';')[0].strip()}: {there[name]}" for line, name in named if name in there.keys() - held_names
    ]


def _held(line: str, there: Mapping[str, str]) -> bool:
    """Whether an image has the package of a requirement; of a requirement with ==, whether it has this version."""
    version, exact = there.get(requirement_files.name_in(line) or ""), requirement_files.exact_version(line)
    return version is not None and exact in (None, version, version.partition("+")[0])
