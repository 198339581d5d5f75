"""Variants of an image: other versions of some of its Python packages, to find the package that made a run bad."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from kit.images import image_lock
from kit.images.build import build, first_image, requirements_lock
from kit.images.progress import ProgressReporter
from kit.schema.image import ImageLock, PythonPackages

_TOML = """\
# {base} with other versions of some packages: written by kit bisect.
[base]
image = "{base}"

[python]
version = {version}
platforms = {platforms}
extra-indexes = {indexes}
"""


def make(
    base: ImageLock,
    packages: Mapping[str, str | None],
    *,
    python: PythonPackages,
    root: Path,
    store: Path,
    report: ProgressReporter,
) -> ImageLock:
    """Build `base` with other versions of some packages, and return the new lock under the base's own name.

    packages: name -> version; None removes the package. Nothing else changes: dependencies are not resolved. python: the Python
    version and platform of the wheels; pip's configuration on this machine says where they are. root: a folder for the locks; keep
    it, because its locks protect the images from kit prune-images. store: holds the base. ImageError when a wheel is not found or
    cannot be installed.
    """
    meaning = json.dumps([base.sha256, sorted(packages.items())])
    name = f"{base.name}-{hashlib.sha256(meaning.encode()).hexdigest()[:12]}"
    folder = root / "containers" / name
    image_lock.write_lock(root / "containers" / base.name / image_lock.FILE, base)
    if not (folder / "image.toml").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        wanted = {name: version for name, version in packages.items() if version is not None}
        removed = [name for name, version in packages.items() if version is None]
        (folder / python.requirements).write_text(
            requirements_lock.exact(wanted, python, on_line=report.line), encoding="utf-8"
        )
        (folder / "Dockerfile").write_text(
            first_image.dockerfile_replacing(removed, install=bool(wanted)), encoding="utf-8"
        )
        # Written last: a folder without image.toml is incomplete, and is written again.
        (folder / "image.toml").write_text(
            _TOML.format(
                base=base.name,
                version=json.dumps(python.version),
                platforms=json.dumps(python.platforms),
                indexes=json.dumps(python.extra_indexes),
            ),
            encoding="utf-8",
        )
    order = build.BuildOrder(name=name, project=root, store=store, relock=True)
    return build.build(order, report).lock.model_copy(update={"name": base.name})
