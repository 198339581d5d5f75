"""Offers what a job lacks before its submit: to start the embedded cluster, and to build its images.

On a terminal each is a question; `--yes` answers it, but not whether an image may get another lock. Elsewhere nothing is done, and
the submit's own error names the command.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

if TYPE_CHECKING:
    from kit.cli.render import Asked
    from kit.errors import LostBaseError
    from kit.images.build.build import BuildOrder
    from kit.workflow.what_is_missing import JobPlace

Planned = TypeVar("Planned", bound="Asked")


def place_of(job: Path, cluster: str | None) -> JobPlace:
    """The cluster that a command names, and the project of a job file or of a job's folder."""
    from kit import data_folders
    from kit.workflow.what_is_missing import JobPlace

    return JobPlace(cluster, data_folders.project(job if job.is_dir() else job.parent))


def made_ready(plan: Callable[[], Planned], place: JobPlace, *, yes: bool, containers: bool = True) -> Planned:
    """Start the embedded cluster if it is down, plan, and build images that are missing, each if the user agrees."""
    if not place.is_one_cluster or not (yes or on_terminal()):
        return plan()
    start_cluster(place, yes=yes)
    return build_images(plan, place, yes=yes) if containers else plan()


def start_cluster(place: JobPlace, *, yes: bool) -> None:
    """Start the embedded cluster of this name if it is down and the user agrees."""
    from kit.slurm import embedded

    name = place.down()
    if name and _agreed(f"The embedded cluster {name!r} is not up. Start it?", yes=yes):
        print(f"kit: {_line_up(name)}", file=sys.stderr)
        embedded.up(name, say=lambda line: print(line, file=sys.stderr))


def build_images(plan: Callable[[], Planned], target: JobPlace, *, yes: bool) -> Planned:
    """Plan, and build images that have no lock or no file, if the user agrees; else the submit's own errors tell the command."""
    from kit.cli.render import jobs_of
    from kit.errors import NotBuiltError
    from kit.workflow import what_is_missing

    offered: set[str] = set()
    while True:
        try:
            asked = plan()
        except NotBuiltError as error:
            if error.image in offered or not _agreed_to_build(error.image, yes=yes):
                raise
            offered.add(error.image)
            _build(error.image, target.store(), target)
            continue
        for name, store in what_is_missing.images(jobs_of(asked)).items():
            if _agreed_to_build(name, yes=yes):
                _build(name, store, target)
        return asked


def on_terminal() -> bool:
    """Whether a question can be asked and answered."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _agreed_to_build(name: str, *, yes: bool) -> bool:
    return _agreed(f"Image {name!r} is not built. Build it, which takes some minutes?", yes=yes)


def _agreed(question: str, *, yes: bool) -> bool:
    return yes or (on_terminal() and typer.confirm(question, default=True, err=True))


def _build(name: str, store: Path, job_place: JobPlace) -> None:
    from kit.errors import EngineError
    from kit.images.build.build import BuildOrder

    try:
        _build_or_relock(BuildOrder(name=name, project=job_place.project, store=store))
    except EngineError as error:
        command, *words = sys.argv[1:]
        bare = shlex.join(["kit", command, "--no-container", "--set", "python=/path/to/venv/bin/python", *words])
        way = f"without an image, on a Python of the nodes that has torch and what the program imports: {bare}"
        raise EngineError(error.message, hint=f"{error.hint}; or {way}") from None


def _build_or_relock(order: BuildOrder) -> None:
    """Build the image; with a base of today and a new lock if that of the lock is lost and the user agrees."""
    from kit.errors import LostBaseError
    from kit.images.build import build
    from kit.images.progress import Terminal

    print(f"kit: kit build-image {order.name}{' --relock' * order.relock}", file=sys.stderr)
    try:
        build.build(order, Terminal())
    except LostBaseError as error:
        if order.relock or not _agreed_to_relock(error, order.project):
            raise
        _build_or_relock(replace(order, name=error.image, relock=True))
        if error.image != order.name:
            _build_or_relock(order)


def _agreed_to_relock(error: LostBaseError, project: Path) -> bool:
    """Whether the user takes other bytes than the lock's. Neither `--yes` nor an empty answer agrees."""
    from kit import data_folders
    from kit.images import image_lock

    if not on_terminal():
        return False
    print(f"kit: {error.message}", file=sys.stderr)
    lock_file = image_lock.place(data_folders.find("containers", error.image, project_dir=project), project=project)
    question = f"Build it with what there is today, and write {lock_file}?"
    return typer.confirm(question, default=False, err=True)


def _line_up(name: str) -> str:
    return "kit cluster up" if name == "local" else f"kit cluster up --name {name}"
