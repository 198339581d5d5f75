"""docs/reference/answers.md: what commands print with --json, field by field, with the version that brought each field."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kit.answers import schemas
from kit.answers.schema_versions import since, version

Table = Callable[[tuple[str, ...], Any], str]
TypeOf = Callable[[Mapping[str, Any], Mapping[str, Any]], str]
_HEAD = """# Answers as data

With `--json`, a command prints one JSON object or list on stdout, and `logs` and `wait` print one object a line. Every such object
has a `schema_version`: the number grows when a field comes, goes or changes. Readers ignore fields that they do not know. JSON has
no NaN and no infinity: such numbers are `null`. `kit schema kit-status` prints the JSON Schema of `kit status --json`, and
`kit schema all --output FOLDER` writes all of them. The site has them in `schema/`. A field with `?` may be missing.

The column *since* has the version that brought the field. An answer with several forms has one section for each.
"""
_ERROR = (
    "A command that fails prints one line of JSON as its last line on stderr, whatever the error is. Its exit code is that of "
    "[the error's class](exit-codes.md). `kit schema error` prints the schema."
)


def page(table: Table, type_of: TypeOf) -> str:
    """The page. table: of Markdown. type_of: the words for the type of a schema's part."""
    parts = [_HEAD]
    shown: dict[str, str] = {}
    for command in schemas.answers():
        parts += _of_command(command, table, type_of, shown)
    return "\n\n".join(parts)


def _of_command(command: str, table: Table, type_of: TypeOf, shown: dict[str, str]) -> Iterator[str]:
    made = schemas.schema(command)
    of_error = command == schemas.ERROR
    yield "## Errors" if of_error else f"## `kit {command} --json`"
    if of_error:
        yield _ERROR
    else:
        yield f"Version {version(command)}. {_form(command, made)}"
    for one in dict.fromkeys(map(_Hashed, schemas.tables(made, made))):
        title = one.table.get("title", "")
        if title in shown:
            yield f"{title}: see [`kit {shown[title]} --json`](#kit-{shown[title].replace(' ', '-')}---json)."
            continue
        shown[title] = command
        yield f"**{title}**: {_first(one.table)}"
        rows = [*_rows(made, one.table, type_of)]
        yield table(
            ("field", "type", "since", "meaning"),
            [(f"`{n}`{o}", t, str(since(command).get(n, 1)), s) for n, o, t, s in rows],
        )


class _Hashed:
    """A table of a schema, by its title: a form that is there for one job and for several is shown once."""

    def __init__(self, table: dict[str, Any]) -> None:
        self.table = table

    def __hash__(self) -> int:
        return hash(self.table.get("title"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Hashed) and other.table.get("title") == self.table.get("title")


def _form(command: str, made: Mapping[str, Any]) -> str:
    if command in schemas.LINES:
        return "One object a line."
    found = []
    for one in made.get("anyOf", [made]):
        if one.get("type") == "array":
            found.append("a list of objects")
        elif "additionalProperties" in one and "properties" not in one:
            found.append("an object with one such object for each name (a stage, or a cluster)")
        else:
            found.append("an object")
    return f"Prints {' or '.join(dict.fromkeys(found))}."


def _rows(
    whole: Mapping[str, Any], part: Mapping[str, Any], type_of: TypeOf, above: str = "", seen: tuple[str, ...] = ()
) -> Iterator[tuple[str, str, str, str]]:
    """Name, `?` if it may be missing, type and meaning of each field, and of those inside it."""
    for key, value in part["properties"].items():
        name = f"{above}{key}"
        optional = "" if key in part.get("required", ()) else "?"
        said = str(value.get("description", "")).split("\n\n")[0].replace("<", "&lt;")
        inner = [*_inner(whole, value)]
        # A table's own sentence stands where its field has none.
        said = said or " ".join(dict.fromkeys(_first(table) for _, _, table in inner))
        nulls = " or null" if any(one.get("type") == "null" for one in value.get("anyOf", ())) else ""
        yield name, optional, type_of(whole, value) + nulls, said
        for title, suffix, table in inner:
            if title not in seen:
                yield from _rows(whole, table, type_of, f"{name}{suffix}.", (*seen, title))


def _inner(whole: Mapping[str, Any], value: Mapping[str, Any], suffix: str = "") -> Iterator[tuple[str, str, Any]]:
    """The tables in a field, each with what its fields have before their names."""
    for one in value.get("anyOf", [value]):
        if "$ref" in one:
            title = one["$ref"].rpartition("/")[2]
            if "properties" in whole["$defs"][title]:
                yield title, suffix, whole["$defs"][title]
        elif isinstance(one.get("items"), dict):
            yield from _inner(whole, one["items"], f"{suffix}[]")
        elif isinstance(one.get("additionalProperties"), dict):
            yield from _inner(whole, one["additionalProperties"], f"{suffix}.NAME")


def _first(table: Mapping[str, Any]) -> str:
    return str(table.get("description", "")).replace("\n", " ").replace("<", "&lt;")
