"""Sends a finished image to the requested cluster, and reports the result to the user."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from kit.cli.print_json import print_json

if TYPE_CHECKING:
    from kit.images.squash_and_lock import Outcome


def done(outcome: Outcome, store: Path | None, cluster: str | None, *, as_json: bool) -> None:
    """Send the image to a cluster over ssh, unless a store was named; print the result."""
    from kit import config, data_folders
    from kit.hosts import clusters, remote_images

    remote = None
    if cluster and not store:
        remote = clusters.find_ssh_host(config.cluster_entry(cluster, data_folders.project()).name)
    if remote:
        remote_images.require_all(remote, [outcome.lock])
    _print(outcome, as_json=as_json)


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
        print_json("build-image", facts, indent=None)
        return
    for change in outcome.changes:
        typer.echo(f"lock: {change}", err=True)
    how = f"made in {outcome.seconds:.1f} s by {outcome.method}" if outcome.built else "nothing has changed"
    typer.echo(f"{lock.name}  {lock.digest}  {lock.size / 1e6:.0f} MB  {how}")
    typer.echo(str(outcome.image))
