"""kit prune-snapshots."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from kit.cli.json_options import Json
from kit.cli.print_json import print_json


def prune_snapshots(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be removed.")] = False,
    as_json: Json = False,
) -> None:
    """Remove workspace snapshots that no run refers to. Snapshots of the last day are kept."""
    from kit import data_folders
    from kit.record import find_runs
    from kit.submission import workspace

    gone = {}
    for runs in find_runs.folders(data_folders.project()):
        store = workspace.store_of(runs)
        if store.root.is_dir():
            gone[str(store.root)] = store.prune(workspace.used(runs), dry_run=dry_run)
    if as_json:
        print_json("prune-snapshots", {"dry_run": dry_run, "removed": gone}, indent=None)
        return
    for folder, hashes in gone.items():
        for name in hashes:
            print(f"{'would remove' if dry_run else 'removed'} {folder}/trees/{name}")
    print(f"{sum(map(len, gone.values()))} snapshots", file=sys.stderr)
