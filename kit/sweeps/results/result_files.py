"""Results as files: CSV, JSON, Parquet."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

from kit.errors import ToolError, UsageError
from kit.files import untrusted_files
from kit.sweeps.results.results import Results


def write(results: Results, path: Path) -> None:
    """Write `path` in the format of its suffix."""
    writer = _WRITERS.get(path.suffix)
    if writer is None:
        raise UsageError(
            f"{path}: the file name's ending is not a known format", hint=f"use one of {', '.join(_WRITERS)}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    writer(results, path)


def facts(results: Results) -> dict[str, object]:
    """The rows, and their sort order. JSON has no NaN and no infinity, so a diverged metric is null."""
    rows = [{name: _finite(value) for name, value in row.items()} for row in results.as_tables()]
    answer: dict[str, object] = {
        "sweep": results.sweep_id,
        "metric": results.metric,
        "goal": results.goal,
        "best": results.best.index if results.best else None,
        "better_but_not_done": [row.index for row in results.better_but_not_done],
        "without_result": dict(results.without_result),
        "points": rows,
    }
    if results.sources:
        answer["sources"] = dict(results.sources)
    if len(results.codes) > 1:
        answer["codes"] = {code: [*points] for code, points in results.codes.items()}
    if results.objectives:
        answer |= {"objectives": results.objectives, "front": [row.index for row in results.front]}
    return answer


def as_json(results: Results) -> str:
    """The same as text."""
    return json.dumps(facts(results), indent=2, allow_nan=False)


def as_csv(results: Results) -> str:
    """A header line, then one line for each point."""
    rows = results.as_tables()
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write_parquet(results: Results, path: Path) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ToolError(
            "pyarrow, which writes Parquet, is not installed", hint="pip install 'slurm-kit[parquet]'"
        ) from None
    parquet.write_table(pyarrow.Table.from_pylist(_uniform(results.as_tables())), path)


def _uniform(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Make columns of one type: a column that mixes text and numbers becomes text."""
    for name in rows[0]:
        kinds = {type(row[name]) for row in rows} - {type(None)}
        if len(kinds) > 1 and not kinds <= {int, float}:
            for row in rows:
                row[name] = None if row[name] is None else str(row[name])
    return rows


_WRITERS: Mapping[str, Callable[[Results, Path], None]] = {
    ".csv": lambda results, path: untrusted_files.write_text(path, as_csv(results)),
    ".json": lambda results, path: untrusted_files.write_text(path, as_json(results) + "\n"),
    ".parquet": _write_parquet,
}
