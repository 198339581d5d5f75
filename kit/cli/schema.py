"""kit schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from kit.cli import completion_candidates
from kit.files import untrusted_files


def schema(
    noun: Annotated[
        str,
        typer.Argument(
            help="One of job, cluster, mounts, launcher, image, table, metrics, comparison; kit-status for the answer of "
            "'kit status --json', kit-cluster-status and so on; error for errors. 'all' stands for all of them, usually with -o.",
            autocompletion=completion_candidates.schemas,
        ),
    ] = "job",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The folder in which to write <noun>.schema.json.")
    ] = None,
) -> None:
    """Print the JSON Schema of a TOML file (editors check files with it), of a command's --json, or of metrics.jsonl."""
    from kit.answers import schemas as of_answers
    from kit.errors import UsageError, did_you_mean
    from kit.schema import schemas

    models, answers = schemas(), {of_answers.file_name(command): command for command in of_answers.answers()}
    known = [*models, *answers]
    wanted = list(known) if noun == "all" else [noun]
    if noun != "all" and noun not in known:
        raise UsageError(f"no schema {noun!r}; known: {', '.join(known)}", hint=did_you_mean(noun, known))
    for name in wanted:
        made = of_answers.schema(answers[name]) if name in answers else models[name].model_json_schema()
        text = json.dumps(made, indent=2) + "\n"
        if output is None:
            print(text, end="")
        else:
            output.mkdir(parents=True, exist_ok=True)
            untrusted_files.write_text(output / f"{name}.schema.json", text)
