"""kit template."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kit.files import untrusted_files

app = typer.Typer(help="Print or save the template of the batch script.", no_args_is_help=True, add_completion=False)


@app.command()
def eject(
    file: Annotated[Path | None, typer.Argument(help="The file to write.", show_default="standard output")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write the kit's own batch template, from which you can make your own template (key `slurm.template`)."""
    from kit.errors import UsageError
    from kit.planning.batch_file import DEFAULT
    from kit.render import plain

    text = plain(DEFAULT)
    if file is None:
        print(text, end="")
        return
    if file.exists() and not force:
        raise UsageError(f"{file}: the file exists already", hint="--force writes over it")
    untrusted_files.write_text(file, text)
    print(file)
    print(f'next: [slurm] template = "{file.name}" in the job file next to it', file=sys.stderr)
