"""The folder of a new image that `kit init --image` writes: on another image, with packages of a file, or of a Dockerfile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from kit import data_folders
from kit.errors import UsageError
from kit.images.build import first_image, repository_image
from kit.images.build.repository_image import RepositoryOptions
from kit.workflow import own_packages, requirement_files
from kit.workflow.requirement_files import Needs


@dataclass(frozen=True, kw_only=True)
class OwnImage:
    """The options of the command line; None or empty: not given.

    base: an image with a lock. packages: requirements in pip's form. dockerfile: a file, or a folder with one. requirements: a file
    that names Python packages. extras: of this file.
    """

    name: str | None
    base: str | None = None
    packages: tuple[str, ...] = ()
    dockerfile: Path | None = None
    requirements: Path | None = None
    extras: tuple[str, ...] = ()


def write(wanted: OwnImage, folder: Path, say: Callable[[str], None]) -> Path:
    """Write containers/NAME in the project of `folder`, and say what it leaves out; return it.

    UsageError for options that contradict each other, a file that cannot be read, and a name that is taken or invalid.
    """
    if not wanted.name:
        problem = "the options describe a new image, and --image does not name it"
        raise UsageError(problem, hint="kit init --image mine --from train-cpu")
    if wanted.extras and wanted.requirements is None:
        raise UsageError(
            "--extra names packages of a file, and --requirements does not name it",
            hint="--requirements pyproject.toml",
        )
    if wanted.dockerfile is None:
        return _with_packages(wanted, wanted.name, data_folders.project(folder), say)
    if wanted.base or wanted.packages or wanted.requirements:
        problem = "--from-dockerfile takes an image as its Dockerfile builds it, and the other options change it"
        raise UsageError(problem, hint=f"kit init --image {wanted.name} --from-dockerfile {wanted.dockerfile}")
    return _of_dockerfile(wanted.dockerfile, wanted.name, folder, say)


def _of_dockerfile(path: Path, name: str, folder: Path, say: Callable[[str], None]) -> Path:
    """The context of a Dockerfile below `folder` is `folder`, as in `docker build --file PATH .`; else the file's own folder."""
    project = data_folders.project(folder)
    if path.is_dir():
        wanted = RepositoryOptions(name=name, context=path)
    else:
        inside = folder.resolve() in path.resolve().parents
        wanted = RepositoryOptions(name=name, file=path, context=folder if inside else path.parent)
    repository_image.write_image_toml(wanted, project)
    say(f"context: {(wanted.context or folder).resolve()} (build.context in image.toml)")
    return project / "containers" / name


def _with_packages(wanted: OwnImage, name: str, project: Path, say: Callable[[str], None]) -> Path:
    base = wanted.base or own_packages.BASE
    needs = Needs("", (), ())
    if wanted.requirements is not None:
        needs = _of_file(wanted.requirements, wanted.extras, say)
    needs = replace(needs, lines=(*needs.lines, *wanted.packages))
    path = first_image.write_image_folder(name, base=base, packages=needs.lines, project=project, indexes=needs.indexes)
    for line in needs.left:
        say(f"kit: warning: {needs.source}: {line!r} is not in the image: no package by its name")
    for one in own_packages.conflicts(needs, base, project):
        say(
            f"kit: warning: {one} is in {base}, and the image keeps it: change the requirement, or name another image with --from"
        )
    return path


def _of_file(path: Path, extras: tuple[str, ...], say: Callable[[str], None]) -> Needs:
    """The packages of a file; of a pyproject.toml, those that the lock beside it names, if this machine has its program."""
    lock = path.with_name("uv.lock")
    if path.name != "pyproject.toml" or not lock.is_file():
        return requirement_files.read_requirements(path, extras)
    if requirement_files.has_uv():
        say(f"{lock}: the versions of the packages")
        return requirement_files.read_requirements(lock, extras)
    say(f"kit: warning: {lock} is not used, because uv is not on this machine: pip chooses the versions")
    return requirement_files.read_requirements(path, extras)
