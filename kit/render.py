"""The kit's only Jinja environment: strict, without auto-escaping, and with a single filter, `sh`.

Jinja renders only the head of a script, up to the line `MARK`. The rest is plain bash and is copied unchanged.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path, PurePath
from typing import Any, TypeVar

import jinja2

from kit import data_folders
from kit.schema import own_batch_script

E = TypeVar("E", bound=jinja2.Environment)

MARK = own_batch_script.MARK
# The Python that runs beside ranks. In a run its modules are in lib/, and the program of the preflight checks is in bin/.
NODE = "kit_node"
ALL_REDUCE = "bin/all_reduce.py"


def sh(value: Any) -> str:
    """A value as one word of bash; a list or tuple as an array literal, one element per line; a table as an associative array."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, Mapping):
        return "(\n" + "".join(f"    [{name}]={shlex.quote(str(v))}\n" for name, v in value.items()) + ")"
    if isinstance(value, list | tuple):
        return "(\n" + "".join(f"    {shlex.quote(str(v))}\n" for v in value) + ")" if value else "()"
    return shlex.quote(str(value))


def render(template: str, variables: Mapping[str, Any]) -> str:
    """Render templates/<template>. jinja2.UndefinedError if its head uses a name that `variables` lacks."""
    head, rest = _parts(template)
    return head.render(variables) + rest


@cache
def _parts(template: str) -> tuple[jinja2.Template, str]:
    """The compiled head, and the unchanged text after it."""
    head, mark, body = plain(template).partition(MARK)
    return environment().from_string(head), mark + body


@cache
def environment() -> jinja2.Environment:
    """The environment for the kit's own templates."""
    return configured(jinja2.Environment)


def configured(kind: type[E]) -> E:
    """A strict environment with one filter. A block tag takes its whole line, and a file keeps its last newline."""
    made = kind(
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["sh"] = sh
    return made


@cache
def plain(name: str) -> str:
    """The unchanged text of a file of templates/, or of a Python module of a run, by its name there (lib/NAME.py)."""
    # Modules import each other by name, in the repository as on the nodes: all are in one folder.
    place = f"{NODE}/{PurePath(name).name}" if name.endswith(".py") else name
    return (_folder() / place).read_text(encoding="utf-8")


@cache
def program_names() -> tuple[str, ...]:
    """The sorted names (bin/NAME) of the programs that are the same in every run, because they have no generated head.

    bin/fuse/NAME: a program that stands before another one of its name on the PATH of Enroot.
    """
    return (
        ALL_REDUCE,
        *(name for name in _names("bin") if MARK not in plain(name)),
        "bin/fuse/fuse-overlayfs",
        "bin/fuse/squashfuse",
    )


@cache
def library_names() -> tuple[str, ...]:
    """lib/NAME of files that programs source, run or import, sorted: shell functions, rules for a stall, kit_node's modules."""
    modules = (f"lib/{name}" for name in _files(NODE) if f"bin/{name}" != ALL_REDUCE)
    return tuple(sorted((*_names("lib"), *modules)))


@cache
def absent_names() -> tuple[str, ...]:
    """Names of the modules that a rank may import in every run, with a stand-in for runs without their feature, sorted."""
    return _files(f"{NODE}/absent")


@cache
def stand_in(name: str) -> str:
    """The text of a stand-in."""
    return (_folder() / NODE / "absent" / name).read_text(encoding="utf-8")


def _names(folder: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for name in _files(folder))


def _files(folder: str) -> tuple[str, ...]:
    return tuple(sorted(p.name for p in (_folder() / folder).iterdir() if p.suffix in {".sh", ".py", ".awk"}))


def _folder() -> Path:
    return data_folders.packaged() / "templates"
