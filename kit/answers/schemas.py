"""JSON Schemas of what commands print with --json, made from the models and dataclasses of the answers themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kit.answers.schema_versions import version

ERROR = "error"


def answers() -> dict[str, Any]:
    """Command -> the type of its answer, and `error` -> that of an error. `logs` and `wait` print one such object a line."""
    from kit.answers import of_images, of_runs
    from kit.answers.explain_run import Explanation
    from kit.answers.log_lines import LogLine
    from kit.answers.printed_error import PrintedError
    from kit.answers.run_status import ListedRun, RunStatus
    from kit.answers.wait_for_runs import RunEvent
    from kit.bisection.bisect import Result
    from kit.images.difference import Difference
    from kit.images.verify_image import Verified
    from kit.record.manifest import Manifest
    from kit.schema.comparison import Comparison
    from kit.sweeps.cancel_by_name import Cancelled

    rendered = of_runs.RenderedJob | dict[str, of_runs.RenderedJob]
    return {
        "submit": Manifest | dict[str, Manifest] | rendered,
        "status": RunStatus,
        "logs": LogLine,
        "why": Explanation,
        "top": of_runs.RankTable,
        "cancel": list[Cancelled],
        "resume": Manifest,
        "results": of_runs.SweepResults,
        "build-image": of_images.BuiltImage,
        "cluster status": of_runs.EmbeddedClusterStatus,
        "migrate": of_runs.MigrationReport,
        "render": rendered,
        "sweep": of_runs.SubmittedSweep,
        "when": list[of_runs.StartForecast],
        "runs": list[ListedRun],
        "diff": Comparison,
        "bisect": Result,
        "stacks": of_runs.RankStacks,
        "time": of_runs.TimeLedger,
        "wait": RunEvent,
        "rerun": Manifest | of_runs.RenderedJob | of_runs.RotationResult,
        "export": of_runs.ExportedRun,
        "import": Manifest,
        "prune-runs": of_runs.PrunedRuns,
        "prune-snapshots": of_runs.PrunedSnapshots,
        "import-image": of_images.BuiltImage,
        "images": list[of_images.StoredImage] | of_images.StoreProblems,
        "verify-image": Verified,
        "prune-images": of_images.PrunedImages,
        "diff-images": Difference,
        "nodes": list[of_runs.NodeFacts],
        "trust": list[of_runs.TrustedFile],
        "model": of_images.ModelSizes,
        "checkpoint-size": of_images.CheckpointSizes,
        "convert-checkpoint": of_images.ConvertedCheckpoint,
        "prepare-data": of_images.PreparedText,
        ERROR: PrintedError,
    }


# Commands that print one object a line, as things happen.
LINES = frozenset({"logs", "wait"})


def file_name(command: str) -> str:
    """The name of an answer's schema: `kit-cluster-status`, as man pages are named; `error` for errors."""
    return ERROR if command == ERROR else f"kit-{command.replace(' ', '-')}"


def schema(command: str) -> dict[str, Any]:
    """The JSON Schema of what `kit COMMAND --json` prints. Its readers ignore keys that they do not know."""
    from pydantic import TypeAdapter

    made = _open(TypeAdapter(answers()[command]).json_schema(mode="serialization"))
    for table in tables(made, made):
        _add_version(table, command)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "title": _title(command)}


def _open(part: Any) -> Any:
    """The same for readers. A later version may have more keys, so no table is closed. A named number may be null: programs report
    NaN.
    """
    if isinstance(part, list):
        return [_open(one) for one in part]
    if not isinstance(part, dict):
        return part
    if part.get("additionalProperties") == {"type": "number"}:
        part = {**part, "additionalProperties": {"type": ["number", "null"]}}
    return {key: _open(one) for key, one in part.items() if (key, one) != ("additionalProperties", False)}


def _title(command: str) -> str:
    if command == ERROR:
        return "the last line of stderr of a command that fails with --json"
    return f"{'a line of ' if command in LINES else ''}kit {command} --json"


def _add_version(table: dict[str, Any], command: str) -> None:
    said = {"const": version(command), "title": "Schema Version", "type": "integer"}
    table["properties"] = {"schema_version": said} | table["properties"]
    table["required"] = [*dict.fromkeys(["schema_version", *table.get("required", ())])]


def tables(whole: Mapping[str, Any], part: Any) -> Iterator[dict[str, Any]]:
    """The objects that an answer is, that its list has, or that its names stand for."""
    if "$ref" in part:
        yield from tables(whole, whole["$defs"][part["$ref"].rpartition("/")[2]])
    elif "anyOf" in part:
        for one in part["anyOf"]:
            yield from tables(whole, one)
    elif "properties" in part:
        yield part
    elif (inner := part.get("items", part.get("additionalProperties"))) is not None:
        yield from tables(whole, inner)
