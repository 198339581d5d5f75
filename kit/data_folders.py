"""Finds entries in the data folders: first the project's, then the user's, then the kit's own.

The folder is the registry: an entry `NAME` of `kind` is `<root>/<kind>/NAME` (a folder) or `<root>/<kind>/NAME.toml`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import platformdirs

from kit.errors import ConfigError, Fault, did_you_mean, nearest

KINDS = ("clusters", "containers", "launchers", "mounts")


# The folder whose project the Python API was given, in place of the working folder's.
_start: ContextVar[Path | None] = ContextVar("start of the project", default=None)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry of a data folder: its name, its TOML file, and the root folder that contains it."""

    name: str
    path: Path
    root: Path

    @property
    def folder(self) -> Path:
        """The folder with the entry's files."""
        return self.path.parent


@cache
def packaged() -> Path:
    """The kit's own data: in the wheel, or in the checkout of an editable install."""
    inside = Path(__file__).parent / "_data"
    return inside if inside.is_dir() else Path(__file__).parent.parent


def project(start: Path | None = None) -> Path:
    """The project of `start` (default: the folder of `in_project`, else the working folder).

    It is the nearest parent folder with `.git` or one of the data folders; if there is none, `start` itself.
    """
    here = (start or _start.get() or Path.cwd()).resolve()
    # The kit's own user folders also contain `clusters/`, and the root may contain anything.
    never = {Path("/"), user_data().resolve(), user_config().resolve()}
    for folder in (here, *here.parents):
        if (folder / ".git").exists() or (folder not in never and any((folder / kind).is_dir() for kind in KINDS)):
            return folder
    return here


@contextmanager
def in_project(folder: Path | None) -> Iterator[None]:
    """Within the block, and in this thread or task, the project is that of `folder`; None changes nothing."""
    if folder is None:
        yield
        return
    token = _start.set(folder)
    try:
        yield
    finally:
        _start.reset(token)


def user_config() -> Path:
    """`~/.config/kit`, or the folder below XDG_CONFIG_HOME."""
    return platformdirs.user_config_path("kit")


def user_data() -> Path:
    """`~/.local/share/kit`, or the folder below XDG_DATA_HOME: the default place of images and the embedded cluster."""
    return platformdirs.user_data_path("kit")


def image_store() -> Path:
    """The image store if neither an option nor the cluster's file names one: KIT_STORE, else `images` in `user_data`."""
    named = os.environ.get("KIT_STORE")
    return Path(named).expanduser().absolute() if named else user_data() / "images"


def roots(project_dir: Path) -> tuple[Path, ...]:
    """The root folders that are searched, in order."""
    found = [project_dir, user_config(), packaged()]
    return tuple(dict.fromkeys(root.resolve() for root in found))


def find(kind: str, name: str, *, project_dir: Path, asked_by: str = "command line", key: str = "") -> Entry:
    """The entry `name` of `kind`; ConfigError with the known and the nearest names if there is none.

    asked_by, key: the file and key that named it, for the error.
    """
    for root in roots(project_dir):
        path = _toml_of(root, kind, name)
        if path is not None:
            return Entry(name=name, path=path, root=root)
    known = names(kind, project_dir=project_dir)
    question = did_you_mean(name, known)
    raise ConfigError.of(
        Fault(
            file=asked_by,
            key=key or kind,
            problem=f"no {kind}/ folder holds {name!r}" + (f"; {question}" if question else ""),
            allowed=", ".join(known),
            hint=_instead(kind, name, known, asked_by, key),
        )
    )


def _instead(kind: str, name: str, known: list[str], asked_by: str, key: str) -> str:
    """The hint: another name to write, or a file to add."""
    near = nearest(name, known)
    if near is None:
        return _that_makes(kind, name) or f"add {kind}/{_file_of(kind, name)} to the project"
    return f"{asked_by} {near}" if asked_by.startswith("--") else f'{key} = "{near}"' if key else near


def _that_makes(kind: str, name: str) -> str:
    """The command that makes an entry of this name, where there is one."""
    if re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name) is None:
        return ""
    if kind == "clusters":
        return f"on a login node, 'kit cluster detect {name}' writes clusters/{name}.toml"
    if kind == "containers":
        makes = f"'kit init --image {name} --from train-cpu --pip PACKAGE' writes containers/{name}"
        return f"{makes}; 'kit import-image' takes an existing image"
    return ""


def names(kind: str, *, project_dir: Path) -> list[str]:
    """All entries of `kind` in all root folders, sorted."""
    return _names_under(roots(project_dir), kind)


def own_names(kind: str, *, project_dir: Path) -> list[str]:
    """The entries of project and user, without the kit's own, sorted."""
    return _names_under([root for root in roots(project_dir) if root != packaged().resolve()], kind)


def _names_under(roots: Iterable[Path], kind: str) -> list[str]:
    seen: set[str] = set()
    for root in roots:
        folder = root / kind
        if folder.is_dir():
            seen |= {
                p.stem if p.suffix == ".toml" else p.name for p in folder.iterdir() if _toml_of(root, kind, p.stem)
            }
    return sorted(seen)


def _toml_of(root: Path, kind: str, name: str) -> Path | None:
    if not name or os.sep in name or name.startswith("."):
        return None
    path = root / kind / _file_of(kind, name)
    return path if path.is_file() else None


def _file_of(kind: str, name: str) -> str:
    inner = {"containers": "image.toml", "launchers": "launcher.toml"}.get(kind)
    return f"{name}/{inner}" if inner else f"{name}.toml"
