"""Variants of an image: some of its Python packages at other versions, to find the package that made a run bad."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from kit.images import build, first_image, image_lock, requirements_lock
from kit.images.progress import Report
from kit.spec.image import ImageLock, PythonPackages

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
    place: Path,
    store: Path,
    report: Report,
) -> ImageLock:
    """Build `base` with some packages at other versions, and return its lock, under the base's own name.

    packages: name -> version; None takes it out. Nothing else changes: what they depend on is not resolved. python: which Python
    and platform the wheels are for; this machine's own pip configuration says where they are. place: a folder that is kept for the
    locks, which hold the images against kit prune-images. store: has the base. ImageError where a wheel is not found or installed.
    """
    meaning = json.dumps([base.sha256, sorted(packages.items())])
    name = f"{base.name}-{hashlib.sha256(meaning.encode()).hexdigest()[:12]}"
    folder = place / "containers" / name
    image_lock.write(place / "containers" / base.name / image_lock.FILE, base)
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
        # The last file: a folder without it is not whole, and is written anew.
        (folder / "image.toml").write_text(
            _TOML.format(
                base=base.name,
                version=json.dumps(python.version),
                platforms=json.dumps(python.platforms),
                indexes=json.dumps(python.extra_indexes),
            ),
            encoding="utf-8",
        )
    order = build.BuildOrder(name=name, project=place, store=store, relock=True)
    return build.build(order, report).lock.model_copy(update={"name": base.name})
