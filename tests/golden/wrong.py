"""A wrong value for every validator of kit/spec and every rule of planning and the frameworks, and what the kit says of it.

`make golden` writes the messages to tests/golden/messages/, one file for each kind of TOML file or room, for people to read.

python -m tests.golden.wrong     # rewrite all
"""

from __future__ import annotations

import ast
import json
import re
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import tomli_w
from pydantic import BaseModel

from kit import config
from kit.config.toml_file import Table, check_values
from kit.errors import ConfigError, Fault
from kit.schema import models
from kit.schema.image import ImageLock
from kit.schema.wrong_value_messages import Form, Invalid
from tests.golden.wrong_rules import Rule, rules
from tests.golden.wrong_values import VALUES
from tests.support import REPO

FOLDER = Path(__file__).parent / "messages"
_LONG = 1000


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """A wrong value, as a user writes it, and the error."""

    text: str
    error: ConfigError
    table: Mapping[str, Any] | None = None
    model: type[BaseModel] | None = None

    @property
    def message(self) -> str:
        """What the user reads."""
        return re.sub(r"/tmp/[^/\s]*/\d+/", "", str(self.error))


def wrong(kind: str) -> list[Wrong]:
    """All wrong values of one kind of TOML file, or all broken rules of a room."""
    if kind not in VALUES:
        with tempfile.TemporaryDirectory() as folder:
            return [_broken(rule, Path(folder) / str(n)) for n, rule in enumerate(rules()[kind])]
    model: type[BaseModel] = ImageLock if kind == "lock" else models()[kind]
    base, texts = VALUES[kind]
    return [_of(text, _table(base, text), model, f"{kind}.toml") for text in texts]


def _table(base: str, text: str) -> dict[str, Any]:
    """A file's text with a wrong value put in; escapes that TOML does not know are JSON's."""
    if text.startswith("{"):
        return {**tomllib.loads(base), **json.loads(text)}
    top, bracket, tables = text.partition("[") if text.startswith("[") or "\n[" in text else (text, "", "")
    keys = {line.partition("=")[0].strip() for line in top.splitlines()}
    below, mark, inner = base.partition("\n[")
    kept = "\n".join(line for line in below.splitlines() if line.partition("=")[0].strip() not in keys)
    return config.merge(tomllib.loads(kept + mark + inner), tomllib.loads(top + bracket + tables))


def _read(table: Table, model: type[BaseModel], file: str) -> None:
    """As a file is read: its values, then their meaning."""
    check_values(table, file)
    config.validate(table, model, file=file)


def _of(text: str, table: Mapping[str, Any], model: type[BaseModel], file: str) -> Wrong:
    return Wrong(text=text, error=_error(lambda: _read(dict(table), model, file), text), table=table, model=model)


def _broken(rule: Rule, folder: Path) -> Wrong:
    folder.mkdir()
    return Wrong(text=rule.text, error=_error(lambda: rule.run(folder), rule.text))


def _error(run: Callable[[], object], text: str) -> ConfigError:
    try:
        run()
    except ConfigError as error:
        return error
    raise AssertionError(f"nothing is wrong with:\n{text}")


def kinds() -> list[str]:
    """All that has a file of messages."""
    return [*VALUES, *rules()]


def text_of(kind: str) -> str:
    """The messages of a kind, for people: what was written, what the kit says."""
    parts = []
    for one in wrong(kind):
        said = "\n".join(f"    {line}" for line in one.message.splitlines())
        parts.append(f"{_cut(one.text.strip())}\n\n{said}\n")
    return "\n----\n\n".join(parts)


def _cut(text: str) -> str:
    return text if len(text) < _LONG else f"{text[:40]}…"


# ---- which places have had their say ----


@dataclass(frozen=True)
class Place:
    """A call in the kit that makes an Invalid or a Fault."""

    file: str
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.file}:{self.first}"


def places(*paths: str, made: str) -> list[Place]:
    """All calls of `made` in files or folders of the kit."""
    files = [
        f for path in paths for f in ([REPO / path] if path.endswith(".py") else sorted((REPO / path).rglob("*.py")))
    ]
    found = []
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == made:
                found.append(Place(str(file.relative_to(REPO)), node.lineno, node.end_lineno or node.lineno))
    return found


@contextmanager
def watched() -> Iterator[tuple[set[tuple[str, int]], set[int]]]:
    """Where Invalid and Fault are made inside the block, as file and line, and which forms refuse."""
    lines: set[tuple[str, int]] = set()
    forms: set[int] = set()
    saved: tuple[Callable[..., None], ...] = (Invalid.__init__, Fault.__init__)

    def noting(original: Callable[..., None]) -> Callable[..., None]:
        def made(self: object, *args: object, **named: object) -> None:
            frame = sys._getframe(1)
            lines.add((frame.f_code.co_filename.removeprefix(f"{REPO}/"), frame.f_lineno))
            if isinstance(form := frame.f_locals.get("self"), Form):
                forms.add(id(form))
            original(self, *args, **named)

        return made

    Invalid.__init__, Fault.__init__ = map(noting, saved)  # type: ignore[method-assign]
    try:
        yield lines, forms
    finally:
        Invalid.__init__, Fault.__init__ = saved  # type: ignore[method-assign]


def all_forms() -> dict[int, Form]:
    """Every form that a key of a TOML file has, by identity."""
    found: dict[int, Form] = {}
    seen: set[object] = set()

    def look(annotation: Any) -> None:
        if isinstance(annotation, Form):
            found[id(annotation)] = annotation
        elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
            if annotation not in seen:
                seen.add(annotation)
                for field in annotation.model_fields.values():
                    for one in (field.annotation, *field.metadata):
                        look(one)
        else:
            for one in (*get_args(annotation), *getattr(annotation, "__metadata__", ())):
                look(one)

    for model in (*models().values(), ImageLock):
        look(model)
    return found


# ---- a line that works ----


def with_hint(table: Mapping[str, Any], fault: Fault) -> dict[str, Any] | None:
    """The table with the line of `try:` put in where it belongs; None where the hint is no line of TOML."""
    lines = [line.strip() for line in fault.hint.splitlines()]
    if not any("=" in line for line in lines):
        return None
    try:
        written = tomllib.loads("\n".join(lines))
    except tomllib.TOMLDecodeError:
        return None
    mended: dict[str, Any] = tomllib.loads(tomli_w.dumps(table))
    parent, last = _parent(mended, fault.key)
    if parent is None or not isinstance(parent, dict):
        return None
    if lines[0].startswith("[") or "the top of the file" in fault.problem:
        parent.pop(last, None)
        return config.merge(mended, written)
    (name,) = written
    if name != last and last in parent:
        parent.pop(last)
    parent[name] = written[name]
    return mended


def _parent(table: Any, key: str) -> tuple[Any, str]:
    """The table that holds a dotted key, and the key's last name; an item of a list is its list's business."""
    parts = re.findall(r"\[(\d+)\]|([^.\[]+)", key)
    names = [int(number) if number else word for number, word in parts]
    while names and isinstance(names[-1], int):
        names.pop()
    for name in names[:-1]:
        try:
            table = table[name]
        except (KeyError, IndexError, TypeError):
            return None, ""
    return table, str(names[-1]) if names else ""


def write_all() -> None:
    """Rewrite every file of messages."""
    FOLDER.mkdir(exist_ok=True)
    for kind in kinds():
        (FOLDER / f"{kind}.txt").write_text(text_of(kind), encoding="utf-8")


if __name__ == "__main__":
    write_all()
