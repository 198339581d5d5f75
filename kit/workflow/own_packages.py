"""Finds the Python packages that a folder's program needs and that an image lacks."""

from __future__ import annotations

import contextlib
import re
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kit import data_folders, untrusted_files
from kit.errors import UsageError
from kit.images import first_image, image_lock
from kit.spec.image import canonical

# The image that a new one builds on.
BASE = "train-cpu"
_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(\[[^\]]*\])?\s*(?=$|[<>=!~;@, ])")


@dataclass(frozen=True)
class Needs:
    """The requirements of a folder. source: the file that names them. lines: pip's form. left: lines that an image cannot take."""

    source: str
    lines: tuple[str, ...]
    left: tuple[str, ...]


def read(folder: Path) -> Needs | None:
    """The requirements in requirements.txt, else in pyproject.toml; None without either. UsageError for a broken pyproject.toml."""
    for name, lines_of in (("requirements.txt", _of_requirements), ("pyproject.toml", _of_project)):
        if (folder / name).is_file():
            lines = lines_of(folder / name)
            taken = tuple(line for line in lines if _NAME.match(line))
            return Needs(name, taken, tuple(line for line in lines if line not in taken))
    return None


def beyond(needs: Needs, base: str, project: Path) -> list[str]:
    """The requirements whose packages are not in the lock of the image `base`. Without a lock, all of them."""
    place = image_lock.find(base, project=project)
    held: Mapping[str, str] = image_lock.read(place).packages.pip if place else {}
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
    return first_image.write(name, base=BASE, packages=needs.lines, project=project)


def remove(folder: Path) -> None:
    """Remove the folder of an image that `write` has just made, and containers/ if nothing else is in it."""
    shutil.rmtree(folder)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()


def _held(line: str, there: Mapping[str, str]) -> bool:
    """Whether an image has the package of a requirement; of a requirement with ==, whether it has this version."""
    found = _NAME.match(line)
    version = there.get(canonical(found[1])) if found else None
    exact = re.search(r"==\s*([A-Za-z0-9.]+)(?!\.?\*)", line)
    return version is not None and (exact is None or version.partition("+")[0] == exact[1])


def _of_requirements(path: Path) -> list[str]:
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in untrusted_files.read_text(path).splitlines())
    return [line for line in lines if line]


def _of_project(path: Path) -> list[str]:
    try:
        project = tomllib.loads(untrusted_files.read_text(path)).get("project", {})
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: {error}", hint="name the image yourself: --image") from None
    found = project.get("dependencies", []) if isinstance(project, dict) else []
    return [line for line in found if isinstance(line, str)] if isinstance(found, list) else []
