"""The option --json of the commands that print a result, or a run's manifest."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ManifestJson = Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")]
