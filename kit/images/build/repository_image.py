"""Image of a repository's own Dockerfile: containers/NAME/image.toml, which names the context and does not copy it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import tomli_w

from kit.config import load_model
from kit.errors import ConfigError, UsageError
from kit.schema.image import ImageSpec
from kit.schema.schema_base import NAME

_HEAD = """\
# The image of {dockerfile}, built where it is: `kit build-image {name}`. Commit this file and image.lock.
# With a network, the steps can download, and the lock says that another build may give other bytes.
"""
# The names that programs give to a Dockerfile.
_FILES = ("Dockerfile", "Containerfile", "dockerfile")


@dataclass(frozen=True, kw_only=True)
class RepositoryOptions:
    """The options of the command line. None or empty: not given. context, file: as given, relative to the working folder."""

    name: str = ""
    context: Path | None = None
    file: Path | None = None
    target: str | None = None
    network: str | None = None
    platform: str | None = None
    args: Mapping[str, str] = field(default_factory=dict)


def write_image_toml(wanted: RepositoryOptions, project: Path) -> str:
    """Write containers/NAME/image.toml in the project unless it says the same already; return the image's name.

    ConfigError without a folder or a Dockerfile. UsageError if the name is invalid, or the existing file says something else.
    """
    context = (wanted.context or Path()).resolve()
    if not context.is_dir():
        raise ConfigError(f"{context}: no such folder", hint="name the folder of the Dockerfile: kit build-image .")
    file = Path(os.path.abspath(wanted.file)) if wanted.file else _found(context)  # noqa: PTH100  # keeps links
    if not file.is_file():
        raise ConfigError(f"{file}: no such file", hint="name the Dockerfile: kit build-image . --file PATH")
    name = wanted.name or re.sub(r"[^a-z0-9._-]+", "-", context.name.lower()).strip("._-")
    if not NAME.holds(name):
        raise UsageError(f"{name or context}: not the name of an image", hint=f"--name my-image; {NAME.how}")
    folder = project / "containers" / name
    build = {
        "context": os.path.relpath(context, folder.resolve()),
        "dockerfile": os.path.relpath(file, context),
        **({"target": wanted.target} if wanted.target else {}),
        **({"args": dict(wanted.args)} if wanted.args else {}),
        **({"platform": wanted.platform} if wanted.platform else {}),
    }
    toml = folder / "image.toml"
    if toml.exists():
        _must_agree(toml, build | ({"network": wanted.network} if wanted.network else {}))
        return name
    # A repository's Dockerfile was written for a build with a network; without one, nearly every such file fails.
    build["network"] = wanted.network or "default"
    folder.mkdir(parents=True, exist_ok=True)
    shown = os.path.relpath(file, project)
    toml.write_text(_HEAD.format(dockerfile=shown, name=name) + tomli_w.dumps({"build": build}), encoding="utf-8")
    return name


def _found(context: Path) -> Path:
    for name in _FILES:
        if (context / name).is_file():
            return context / name
    raise ConfigError(f"{context}: no Dockerfile in this folder", hint="name it: kit build-image . --file PATH")


def _must_agree(toml: Path, build: Mapping[str, object]) -> None:
    """UsageError if the existing file sets another value than the command line: the file is the user's."""
    now = load_model(toml, ImageSpec).build.model_dump(mode="json")
    for key, value in build.items():
        if now[key] != value:
            problem = f"{toml}: build.{key} is {now[key]!r}, and the command line says {value!r}"
            raise UsageError(problem, hint="change it in the file, or give the new image another name with --name")
