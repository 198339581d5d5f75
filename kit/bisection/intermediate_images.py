"""Images between those of two runs: the good run's image with more and more packages in the bad run's version, built by the kit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kit import data_folders
from kit.bisection.changes import Change
from kit.config import load_model
from kit.errors import ConfigError, ImageError, ToolError
from kit.images import image_variant
from kit.images.progress import Silent
from kit.schema.image import ImageLock, ImageSpec, PythonPackages
from kit.submission.recorded_inputs import Earlier

_PACKAGE = "pip:"


def changes(good: Earlier, bad: Earlier) -> list[Change]:
    """A change for each Python package that differs, then one for the rest of the image. After it the image is the bad run's.

    If no package differs or a lock is missing, only the change for the rest. Empty if both runs have the same image, or if one has
    none.
    """
    digests = [one.manifest.image_digest for one in (good, bad)]
    names = [one.manifest.image_name for one in (good, bad)]
    if not all(digests) or (digests[0] == digests[1] and names[0] == names[1]):
        return []
    found = _packages(*(one.lock(one.manifest.image_name) for one in (good, bad)))
    what = "the rest of the image" if found else "the image"
    text = f"{what} ({names[0]} {digests[0][:19]} -> {names[1]} {digests[1][:19]})"
    return [*found, Change(kind="image", name=digests[1], text=text)]


def is_whole(names: Sequence[str]) -> bool:
    """Whether one of these changes is "the rest of the image". Then the image is the bad run's own."""
    return any(not name.startswith(_PACKAGE) for name in names)


def built(good: Earlier, bad: Earlier, names: Sequence[str], *, folder: Path, store: Path) -> ImageLock:
    """The lock of the good run's image with some packages in the bad run's version. The image is built if the store lacks it.

    names: of changes. folder: a folder for its locks. ImageError when it cannot be built.
    """
    locks = [one.lock(one.manifest.image_name) for one in (good, bad)]
    assert locks[0] is not None
    assert locks[1] is not None
    theirs = locks[1].packages.pip
    wanted = {name: theirs.get(name) for name in (one.removeprefix(_PACKAGE) for one in names)}
    python = _python(good, locks[0])
    try:
        return image_variant.make(locks[0], wanted, python=python, root=folder, store=store, report=Silent())
    except ToolError as error:
        raise ImageError(f"an image with {_text(wanted)}: {error.message}") from None


def _packages(good: ImageLock | None, bad: ImageLock | None) -> list[Change]:
    if good is None or bad is None:
        return []
    a, b = good.packages.pip, bad.packages.pip
    return [
        Change(kind="image", name=f"{_PACKAGE}{name}", text=f"the package {name} ({_of(a, name)} -> {_of(b, name)})")
        for name in sorted({*a, *b})
        if a.get(name) != b.get(name)
    ]


def _python(good: Earlier, lock: ImageLock) -> PythonPackages:
    """Python version and platform of the image's wheels, from the image's folder if it still exists, else from the lock."""
    project = data_folders.project(Path(good.manifest.job_file).parent)
    try:
        entry = data_folders.find("containers", lock.name, project_dir=project)
        found = load_model(entry.path, ImageSpec).python
    except ConfigError:
        found = None
    if found is not None:
        return found.model_copy(update={"requirements": "requirements.lock", "sdists": ()})
    version = lock.packages.apt.get("python3")
    return PythonPackages(version=".".join(version.split(".")[:2])) if version else PythonPackages()


def _of(packages: dict[str, str], name: str) -> str:
    return packages.get(name, "not there")


def _text(wanted: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {version or 'taken out'}" for name, version in wanted.items())
