"""kit images and the commands that check, compare, sign and remove images."""

from __future__ import annotations

import dataclasses
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kit.cli import completion_candidates
from kit.cli.image_options import Name, OfCluster, Store, cluster_of, store_of
from kit.cli.json_options import Json
from kit.cli.print_json import print_json

if TYPE_CHECKING:
    from kit.hosts.status import Status
    from kit.images.store_contents import ImageRow


class SbomForm(StrEnum):
    """The forms of a software bill of materials."""

    SPDX = "spdx"
    CYCLONEDX = "cyclonedx"


_DAY_S = 24 * 3600.0


def images(
    name: Annotated[
        str | None,
        typer.Argument(
            help="List only this image.", show_default="all images", autocompletion=completion_candidates.images
        ),
    ] = None,
    *,
    doctor: Annotated[
        bool, typer.Option("--doctor", help="Report problems that make the store unsafe to share.")
    ] = False,
    sbom: Annotated[
        SbomForm | None,
        typer.Option(
            "--sbom", help="Print the image's software bill of materials (SBOM), made from its lock, as JSON."
        ),
    ] = None,
    store: Store = None,
    cluster: OfCluster = None,
    as_json: Json = False,
) -> None:
    """List images: name, digest, size, age, whether a lock names the image, and the runs that use it."""
    from kit import data_folders
    from kit.cli.print_table import Column, show
    from kit.images import store_contents

    if doctor:
        _doctor(store_of(store, cluster), as_json=as_json)
        return
    if sbom is not None:
        _print_sbom(name, sbom)
        return
    rows = store_contents.rows(store_of(store, cluster), data_folders.project())
    rows = [row for row in rows if name in {None, row.name}]
    used = _runs_by_digest()
    if as_json:
        facts = [
            {
                "name": row.name,
                "digest": f"sha256:{row.sha256}",
                "size": row.size,
                "made": row.made or None,
                "present": row.present,
                "locks": [str(path) for path in row.locks],
                "runs": [run.facts.run_id for run in used.get(row.sha256, [])],
            }
            for row in rows
        ]
        print_json("images", facts)
        return
    columns = (
        Column("name"), Column("digest"), Column("MB", 4), Column("age", 5), Column("locked", 3), Column("in store", 2),
        Column("runs", 1),
    )  # fmt: skip
    show(columns, [_cells(row, len(used.get(row.sha256, []))) for row in rows])


def _print_sbom(name: str | None, form: SbomForm) -> None:
    from datetime import UTC, datetime

    from kit import data_folders
    from kit.errors import UsageError
    from kit.images import image_lock, sbom

    if name is None:
        raise UsageError("--sbom needs the name of an image", hint=f"kit images train-cpu --sbom {form.value}")
    found = image_lock.read_lock(_lock_file(name, data_folders.project()))
    typer.echo(sbom.make_sbom(found, form.value, now=datetime.now(UTC)), nl=False)


def _cells(row: ImageRow, runs: int) -> tuple[object, ...]:
    age = _age(row.made) if row.present else ""
    locked, present = ("yes" if held else "no" for held in (row.locks, row.present))
    return (row.name, row.sha256[:12], f"{row.size / 1e6:.0f}", age, locked, present, runs)


def verify_image(
    image: Annotated[
        str,
        typer.Argument(
            metavar="NAME|PATH",
            help="Name of an image with a lock, or path of a .sqsh file.",
            autocompletion=completion_candidates.images,
        ),
    ],
    *,
    full: Annotated[bool, typer.Option("--full", help="Read the whole file and compare its sha256.")] = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Build the image again from scratch and compare the bytes with the lock.")
    ] = False,
    signature: Annotated[
        bool, typer.Option("--signature", help="Check the lock's signature against the cluster's store.signers.")
    ] = False,
    store: Store = None,
    cluster: OfCluster = None,
    as_json: Json = False,
) -> None:
    """Check that an image file is complete and matches its lock."""
    from kit import data_folders
    from kit.images import verify_image
    from kit.images.progress import Terminal

    project, store_folder = data_folders.project(), store_of(store, cluster)
    if signature:
        typer.echo(_signed(image, cluster), err=True)
    if rebuild:
        result = verify_image.rebuilt(image, project=project, store=store_folder, report=Terminal())
    else:
        result = verify_image.checked(image, project=project, store=store_folder, full=full)
    if as_json:
        print_json("verify-image", dataclasses.asdict(result))
    else:
        typer.echo(str(result))


def diff_images(
    first: Annotated[
        str,
        typer.Argument(metavar="A", help="Name of an image, the first digits of its digest, or path of a .sqsh file."),
    ],
    second: Annotated[str, typer.Argument(metavar="B", help="The other image, given in the same way.")],
    *,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Show how two images differ: packages, files, environment, configuration. The exit code is 1 if they differ."""
    from dataclasses import asdict

    from kit import data_folders
    from kit.images import difference

    store_folder = store_of(store)
    a, b = (difference.find(name, project=data_folders.project(), store_dir=store_folder) for name in (first, second))
    differences = difference.between(a, b)
    if as_json:
        print_json("diff-images", asdict(differences))
    else:
        for title, lines in asdict(differences).items():
            for line in [f"{title}:", *(f"  {line}" for line in lines)] if lines else []:
                typer.echo(line)
        if not differences.any:
            typer.echo("no difference")
    raise typer.Exit(1 if differences.any else 0)


def sign_image(
    name: Name,
    key: Annotated[
        Path,
        typer.Option("--key", "-k", help="Your SSH key. Give the public key if an SSH agent holds the private key."),
    ] = Path("~/.ssh/id_ed25519"),
) -> None:
    """Sign an image's lock with your SSH key. A cluster that lists you in its `store.signers` then accepts the image."""
    from kit import data_folders
    from kit.images import signature

    typer.echo(str(signature.sign(_lock_file(name, data_folders.project()), key.expanduser())))


def _signed(name: str, cluster: str | None) -> str:
    """What was signed, and by whom."""
    from kit import data_folders
    from kit.images import signature

    place = _lock_file(name, data_folders.project())
    return str(signature.require(place, cluster_of(cluster).store.signers, what=f"image {name}"))


def _lock_file(name: str, project: Path) -> Path:
    from kit.errors import LockError
    from kit.images import image_lock

    found = image_lock.find(name, project=project)
    if found is None:
        raise LockError(f"image {name}: it has no image.lock", hint=f"run 'kit build-image {name}'")
    return found


def _doctor(store: Path, *, as_json: bool) -> None:
    """Print the problems of a store; exit code 1 if there are any."""
    from kit.images import store_safety

    found = [*store_safety.problems(store)]
    if as_json:
        print_json("images", {"store": str(store), "problems": found})
    else:
        typer.echo("\n".join(found) or f"{store}: nothing that others could change")
    if found:
        raise typer.Exit(1)


def prune_images(
    *,
    older_than: Annotated[
        float, typer.Option(min=0, help="Keep images and layers that are younger than this number of days.")
    ] = 7.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be removed.")] = False,
    store: Store = None,
    cluster: OfCluster = None,
    as_json: Json = False,
) -> None:
    """Remove images that no lock names and no queued or running job uses.

    The user's cache of registry layers is pruned, too: layers that no import has used for --older-than days are removed.
    """
    from kit import data_folders
    from kit.images import store as image_store
    from kit.images import store_contents
    from kit.images.sources import layer_cache
    from kit.record import find_runs, hot_pages

    place = store_of(store, cluster)
    image_store.prepare_store(place)
    in_use = {sha256 for sha256, runs in _runs_by_digest().items() if any(_needs_image(run) for run in runs)}
    done = store_contents.prune(
        place, data_folders.project(), in_use=in_use, older_than_s=older_than * _DAY_S, dry_run=dry_run
    )
    gone = done.gone
    if not dry_run:
        hot_pages.forget(find_runs.folders(data_folders.project()), [path.stem for path, _ in gone])
    layers = layer_cache.prune(older_than_s=older_than * _DAY_S, dry_run=dry_run)
    if as_json:
        kept = [{"path": str(path), "reason": reason} for path, reason in done.refused]
        removed = [str(path) for path, _ in (*gone, *layers)]
        print_json("prune-images", {"dry_run": dry_run, "removed": removed, "kept": kept}, indent=None)
        return
    for path, size in (*gone, *layers):
        typer.echo(f"{'would remove' if dry_run else 'removed'} {path} ({size / 1e6:.0f} MB)")
    for path, reason in (*done.refused, *done.strange):
        typer.echo(f"{'left' if path.parent.name == 'sha256' else 'no note'}: {path}: {reason}", err=True)
    total = sum(size for _, size in (*gone, *layers)) / 1e6
    typer.echo(f"{total:.0f} MB in {len(gone)} images and {len(layers)} cached layers", err=True)


def _runs_by_digest() -> dict[str, list[Status]]:
    """Runs of this project by the digest (64 hex digits) of their image."""
    from kit import data_folders
    from kit.cli.wait_and_follow import queue
    from kit.hosts import status
    from kit.record import find_runs

    table: dict[str, list[Status]] = {}
    for run in status.of_facts(find_runs.find_all(find_runs.folders(data_folders.project())), queue=queue()):
        table.setdefault(run.facts.image_digest.removeprefix("sha256:"), []).append(run)
    return table


def _needs_image(run: Status) -> bool:
    """Whether the run may still start a container: it is not known to have ended."""
    return run.state not in {"COMPLETED", "FAILED", "LOST"}


def _age(made: float) -> str:
    days = (time.time() - made) / _DAY_S
    return f"{days:.0f} d" if days >= 1 else f"{days * 24:.1f} h"
