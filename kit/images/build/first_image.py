"""The user's first own image: the folder that `kit init --image` writes, based on an image that has a lock."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tomli_w

from kit import data_folders
from kit.errors import LockError, UsageError
from kit.images import image_lock
from kit.schema.schema_base import NAME

_TOML = """\
# An image of your own: what {base} holds, and what requirements.txt names.
description = "{base} with packages of our own"

[base]
image = "{base}"       # exactly the bytes of its image.lock

[python]
requirements = "requirements.lock"   # written by the kit from requirements.txt
version = "{version}"
{indexes}"""

_DOCKERFILE = """\
# BASE comes from image.toml; wheels/ holds the packages of requirements.lock, fetched on the host: nothing here uses a network.
ARG BASE
FROM ${BASE}

# pip runs from Debian's wheel of it where the base has none of its own. The files' times become 0 in the .sqsh: all byte code, the
# base's too, is compiled again to be valid whatever they are, and Python writes none of its own on the way. Some packages hold
# files for other Pythons: they do not compile, and that is not a fault.
COPY requirements.lock wheels /tmp/wheels/
RUN export PYTHONPATH="$(echo /usr/share/python-wheels/pip-*.whl)" PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1<<EXPORTS>> \\
<<CHANGES>>
    && rm -rf /tmp/wheels \\
    && { python3 -m compileall -qq -f -j 0 --invalidation-mode unchecked-hash $(python3 -c 'import glob, sys; \\
        print(*(found for root in sorted({sys.prefix, sys.base_prefix, sys.base_prefix + "/local"}) \\
            for found in sorted(glob.glob(root + "/lib/python3*"))))') || true; }
"""
_INSTALL = """\
    && python3 -m pip install --no-index --no-deps --find-links /tmp/wheels --require-hashes \\
        --requirement /tmp/wheels/requirements.lock --no-compile --no-cache-dir --disable-pip-version-check --quiet \\"""
_UNINSTALL = "    && python3 -m pip uninstall --yes --quiet {names} \\"


def dockerfile() -> str:
    """The Dockerfile of an image that builds on another one, with the packages of requirements.lock."""
    return _with(_INSTALL, exports="")


def dockerfile_replacing(removed: Sequence[str], *, install: bool) -> str:
    """The same Dockerfile, but it removes or replaces packages of the base, even in the distribution's own Python (PEP 668).

    removed: Python packages to remove. install: whether to install those of requirements.lock.
    """
    lines = [_UNINSTALL.format(names=" ".join(removed))] if removed else []
    return _with(*lines, *([_INSTALL] if install else []), exports=" PIP_BREAK_SYSTEM_PACKAGES=1")


def _with(*lines: str, exports: str) -> str:
    return _DOCKERFILE.replace("<<EXPORTS>>", exports).replace("<<CHANGES>>", "\n".join(lines))


def write_image_folder(
    name: str, *, base: str, packages: Sequence[str], project: Path, indexes: Sequence[str] = ()
) -> Path:
    """Write containers/NAME in the project and return the folder.

    base: an image that has a lock. packages: requirements in pip's form. indexes: further ones that have them. UsageError for a
    name that is taken or invalid, LockError for a base without a lock.
    """
    if not NAME.holds(name):
        raise UsageError(f"--image {name}: not the name of an image", hint=NAME.how)
    folder = project / "containers" / name
    if folder.exists():
        raise UsageError(
            f"{folder}: this image folder exists already", hint="choose another name, or edit the files in the folder"
        )
    place = image_lock.find(base, project=project)
    if place is None:
        data_folders.find("containers", base, project_dir=project, key="--from")
        raise LockError(f"image {base} has no lock", hint=f"run 'kit build-image {base}' first")
    version = ".".join(image_lock.read_lock(place).packages.apt.get("python3", "3.11").split(".")[:2])
    folder.mkdir(parents=True)
    more = tomli_w.dumps({"extra-indexes": list(indexes)}) if indexes else ""
    (folder / "image.toml").write_text(_TOML.format(base=base, version=version, indexes=more), encoding="utf-8")
    (folder / "Dockerfile").write_text(dockerfile(), encoding="utf-8")
    (folder / "requirements.txt").write_text("".join(f"{package}\n" for package in packages), encoding="utf-8")
    return folder
