"""kit init, kit schema."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

_FIRST_JOB = """\
# A first job: the kit's own data parallel example on the embedded cluster. `kit render` shows what it becomes.
name = "first"
launcher = "ddp"
image = "train-cpu"
args = ["--epochs", "12"]
# script = "train.py"   # your own program, instead of the launcher's

[resources]
nodes = 2
gpus_per_node = 2
"""


def init(
    folder: Annotated[
        Path, typer.Argument(help="Where to write job.toml.", show_default="the working folder")
    ] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Write over a job.toml that is there.")] = False,
) -> None:
    """Write a first job.toml."""
    from kit.errors import UsageError

    path = folder / "job.toml"
    if path.exists() and not force:
        raise UsageError(f"{path}: there is one already", hint="--force writes over it")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(_FIRST_JOB, encoding="utf-8")
    print(path)
    print("next: kit cluster up; kit build-image train-cpu; kit submit --follow", file=sys.stderr)


def schema(
    noun: Annotated[
        str, typer.Argument(help="job, cluster, mounts, launcher, image or table; 'all' with -o writes every one.")
    ] = "job",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A folder to write <noun>.schema.json to.")
    ] = None,
) -> None:
    """Print the JSON Schema of a TOML file, for editors that complete and check as you type."""
    from kit.errors import UsageError, did_you_mean
    from kit.spec import models

    known = models()
    wanted = list(known) if noun == "all" else [noun]
    if noun != "all" and noun not in known:
        raise UsageError(f"no schema {noun!r}; known: {', '.join(known)}", hint=did_you_mean(noun, known))
    for name in wanted:
        text = json.dumps(known[name].model_json_schema(), indent=2) + "\n"
        if output is None:
            print(text, end="")
        else:
            output.mkdir(parents=True, exist_ok=True)
            (output / f"{name}.schema.json").write_text(text, encoding="utf-8")
