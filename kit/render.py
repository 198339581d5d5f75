"""The kit's only Jinja environment: strict, without auto-escaping, and with a single filter, `sh`.

Jinja renders only the head of a script, up to the line `MARK`. The rest is plain bash and is copied unchanged.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path, PurePath
from typing import Any, TypeVar

import jinja2

from kit import data_folders
from kit.files.safe_text import is_unsafe
from kit.schema import own_batch_script

E = TypeVar("E", bound=jinja2.Environment)

MARK = own_batch_script.MARK
# The Python that runs beside ranks. In a run its modules are in lib/, and the program of the preflight checks is in bin/.
NODE = "kit_node"
ALL_REDUCE = "bin/all_reduce.py"
PARTS = "parts"
_INCLUDE = re.compile(r"^# include (core/\S+)\n", re.MULTILINE)


def quote(word: str) -> str:
    """A text as one word of bash. Without control characters: who prints the script on a terminal sees their escapes.

    `$'…'` has bytes, so the word is the same in any locale.
    """
    if not is_unsafe(word):
        return shlex.quote(word)
    escaped = "".join(
        "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogatepass"))
        if char != "\n" and is_unsafe(char)
        else f"\\{char}"
        if char in "\\'"
        else char
        for char in word
    )
    return f"$'{escaped}'"


def sh(value: Any) -> str:
    """A value as one word of bash; a list or tuple as an array literal, one element per line; a table as an associative array."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, Mapping):
        return "(\n" + "".join(f"    [{name}]={quote(str(v))}\n" for name, v in value.items()) + ")"
    if isinstance(value, list | tuple):
        return "(\n" + "".join(f"    {quote(str(v))}\n" for v in value) + ")" if value else "()"
    return quote(str(value))


def render(template: str, variables: Mapping[str, Any]) -> str:
    """Render templates/<template>. jinja2.UndefinedError if its head uses a name that `variables` lacks."""
    head, rest = _parts(template)
    return head.render(variables) + rest


@cache
def _parts(template: str) -> tuple[jinja2.Template, str]:
    """The compiled head, and the unchanged text after it."""
    head, mark, body = plain(template).partition(MARK)
    return environment().from_string(head), mark + body


def without_body(text: str) -> tuple[str, int]:
    """A rendered script's head, and the number of lines after it; the whole text and 0 unless the rest is that of a template."""
    head, _, body = text.partition(MARK)
    return (head, body.count("\n")) if body and body in _bodies() else (text, 0)


@cache
def _bodies() -> frozenset[str]:
    return frozenset(body for name in _places() if (body := plain(name).partition(MARK)[2]))


@cache
def environment() -> jinja2.Environment:
    """The environment for the kit's own templates."""
    return configured(jinja2.Environment)


def configured(kind: type[E]) -> E:
    """A strict environment with one filter. A block tag takes its whole line, and a file keeps its last newline."""
    template_environment = kind(
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    template_environment.filters["sh"] = sh
    return template_environment


@cache
def plain(name: str) -> str:
    """The text of a file of templates/: by its name in a run (bin/NAME, lib/NAME), or by its path there.

    Slurm copies a batch script alone. What several must have before they source anything is in a file of its own: a line
    `# include PATH` stands for that file's lines after the first, which is for shellcheck.
    """
    text = _places().get(name, _folder() / name).read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda found: plain(found[1]).partition("\n")[2], text)


@cache
def program_names() -> tuple[str, ...]:
    """The sorted names (bin/NAME) of the programs that are the same in every run, because they have no generated head.

    bin/fuse/NAME: a program that stands before another one of its name on the PATH of Enroot.
    """
    return tuple(name for name in _places() if name.startswith("bin/") and MARK not in plain(name))


@cache
def library_names() -> tuple[str, ...]:
    """lib/NAME of files that programs source, run or import, sorted: shell functions, rules for a stall, kit_node's modules."""
    return tuple(name for name in _places() if name.startswith("lib/"))


@cache
def part_names(part: str) -> tuple[str, ...]:
    """The names in a run of the files of templates/parts/PART/, sorted. Its part.sh is lib/PART.sh there."""
    folder = _folder() / PARTS / part
    return tuple(name for name, path in _places().items() if path.is_relative_to(folder))


@cache
def part_folders() -> tuple[str, ...]:
    """The names of the folders in templates/parts/."""
    return tuple(path.name for path in (_folder() / PARTS).iterdir())


def part_declaration(part: str) -> str:
    """The text of a part's part.toml."""
    return plain(f"{PARTS}/{part}/part.toml")


def write_all(folder: Path) -> None:
    """Write bin/ and lib/ of a run folder, with the files of all parts, for programs that run without a run folder."""
    for name in _places():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(plain(name), encoding="utf-8")
        path.chmod(0o755 if name.startswith("bin/") else 0o644)


@cache
def called_names() -> tuple[str, ...]:
    """lib/NAME.sh of the parts that have a part.sh: those that the batch script calls."""
    return tuple(name for name, path in _places().items() if path.name == "part.sh")


@cache
def _places() -> dict[str, Path]:
    """Name in a run's bin/ or lib/ -> the file of templates/ that it is a copy of, sorted by name.

    Modules import each other by name, in the repository as on the nodes: all are in one folder.
    """
    top = _folder()
    sources = {f"lib/{path.parent.name}.sh": path for path in (top / PARTS).glob("*/part.sh")}
    for folder in (top / "core", *(top / PARTS / name for name in part_folders())):
        for kind in ("bin", "lib"):
            files = (path for path in (folder / kind).rglob("*") if path.is_file())
            sources |= {str(path.relative_to(folder)): path for path in files}
    modules = ((f"lib/{path.name}", path) for path in (top / NODE).glob("*.py"))
    sources |= {ALL_REDUCE if name == f"lib/{PurePath(ALL_REDUCE).name}" else name: path for name, path in modules}
    return dict(sorted(sources.items()))


@cache
def absent_names() -> tuple[str, ...]:
    """Names of the modules that a rank may import in every run, with a stand-in for runs without their feature, sorted."""
    return tuple(sorted(path.name for path in (_folder() / NODE / "absent").glob("*.py")))


@cache
def stand_in(name: str) -> str:
    """The text of a stand-in."""
    return (_folder() / NODE / "absent" / name).read_text(encoding="utf-8")


def _folder() -> Path:
    return data_folders.packaged() / "templates"
