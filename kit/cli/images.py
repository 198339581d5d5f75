"""`kit build-image` and its fellows: images, their locks and the store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kit.images.make import Outcome

Name = Annotated[str, typer.Argument(help="An image: a folder of containers/.", show_default=False)]
Store = Annotated[
    Path | None,
    typer.Option("--store", help="The image store.", show_default="KIT_STORE, else the user's data folder"),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Locked = Annotated[bool, typer.Option("--locked", help="Fail when the result is not what the lock names, saying why.")]
Fresh = Annotated[
    bool, typer.Option("--no-cache", help="From nothing: base, packages and every step of the Dockerfile again.")
]


def build_image(
    name: Name, *, store: Store = None, locked: Locked = False, no_cache: Fresh = False, json_: Json = False
) -> None:
    """Build an image, squash it into the store, and write its lock."""
    from kit import resources
    from kit.images import build
    from kit.images import store as image_store
    from kit.images.progress import Terminal

    order = build.Order(
        name=name,
        project=resources.project(),
        store=store.absolute() if store else image_store.default(),
        locked=locked,
        fresh=no_cache,
    )
    _print(build.build(order, Terminal()), as_json=json_)


def _print(outcome: Outcome, *, as_json: bool) -> None:
    lock = outcome.lock
    if as_json:
        facts = {
            "name": lock.name,
            "digest": lock.digest,
            "size": lock.size,
            "path": str(outcome.image),
            "lock": str(outcome.lock_file),
            "built": outcome.built,
            "method": outcome.method,
            "changes": list(outcome.changes),
            "seconds": round(outcome.seconds, 3),
        }
        typer.echo(json.dumps(facts))
        return
    for change in outcome.changes:
        typer.echo(f"lock: {change}", err=True)
    how = f"made in {outcome.seconds:.1f} s by {outcome.method}" if outcome.built else "nothing has changed"
    typer.echo(f"{lock.name}  {lock.digest}  {lock.size / 1e6:.0f} MB  {how}")
    typer.echo(str(outcome.image))
