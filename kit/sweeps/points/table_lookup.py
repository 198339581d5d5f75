"""Looks values up in tables/*.toml: `lookup:steps`, `lookup:models.parameters`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kit import config, data_folders
from kit.config import shown as shown_path
from kit.errors import ConfigError, did_you_mean
from kit.schema.lookup_table import Table
from kit.schema.sweep import Value
from kit.sweeps.points.expressions import ExpressionError, Lookup, UnknownName, checked, evaluate

_ANY = "*"
KIND = "tables"


class Tables:
    """The tables of a project; each is read when it is first used."""

    def __init__(self, project: Path) -> None:
        self._project = project

    def find(self, reference: str, names: Lookup) -> Value:
        """The value of `table` or `table.column` for the point that `names` describes. ExpressionError if there is none."""
        name, _, column = reference.partition(".")
        table, file = self._read(name)

        def of_point(wanted: str) -> Any:
            """The value of a name: from the point, else the table's own default."""
            try:
                return names(wanted)
            except UnknownName:
                if wanted not in table.defaults:
                    raise
                return table.defaults[wanted]

        entry: Any = table.values
        for wanted in table.by:
            entry = _chosen(entry, of_point(wanted), wanted, file)
        below: Lookup = of_point
        if isinstance(entry, Mapping):
            entry, below = _column(entry, column, reference, file), _with_row(entry, of_point)
        elif column:
            raise ExpressionError(f"{file}: each row is a single value, so there is no column {column!r}")
        if isinstance(entry, str) and entry.startswith("="):
            return checked(evaluate(entry[1:], below, lambda inner: self.find(inner, below)))
        return checked(entry)

    def _read(self, name: str) -> tuple[Table, str]:
        try:
            entry = data_folders.find(KIND, name, project_dir=self._project, asked_by="lookup", key=name)
        except ConfigError as error:
            (fault,) = error.faults
            raise ExpressionError(f"{fault.problem}; known: {fault.allowed}") from None
        return config.load_model(entry.path, Table), shown_path(entry.path)


def _chosen(rows: Any, value: Any, by: str, file: str) -> Any:
    if not isinstance(rows, Mapping):
        raise ExpressionError(f"{file}: the table has fewer levels than 'by' has names: no level for {by!r}")
    for key in _as_keys(value):
        if key in rows:
            return rows[key]
    if _ANY in rows:
        return rows[_ANY]
    said = f"{file}: no row for {by} = {value!r}; it has {', '.join(rows)}"
    raise ExpressionError("; ".join(filter(None, [said, did_you_mean(str(value), rows)])))


def _column(row: Mapping[str, Any], column: str, reference: str, file: str) -> Any:
    if column in row:
        return row[column]
    if not column:
        raise ExpressionError(
            f"{file}: a row has the columns {', '.join(row)}; name one of them, such as lookup:{reference}.{next(iter(row))}"
        )
    raise ExpressionError(f"{file}: no column {column!r}; it has {', '.join(row)}")


def _with_row(row: Mapping[str, Any], below: Lookup) -> Lookup:
    """Names of a row take precedence over those of the point."""

    def names(wanted: str) -> Any:
        value = row.get(wanted)
        if isinstance(value, str) and value.startswith("="):
            return evaluate(value[1:], names, _no_lookup)
        return below(wanted) if value is None else value

    return names


def _no_lookup(reference: str) -> Any:
    raise ExpressionError(f"lookup({reference!r}) cannot be used in a column that another column refers to")


def _as_keys(value: Any) -> list[str]:
    """The possible spellings of a value as a TOML key: 1.0 as '1.0' or '1', true as 'true'."""
    if isinstance(value, bool):
        return ["true" if value else "false"]
    if isinstance(value, float) and value.is_integer():
        return [str(value), str(int(value))]
    return [str(value)]
