"""Inputs of a plan that depend on the machine and the moment, such as paths and the run's id."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The workspace that a run takes with it. tree: its hash. folder: where the tree is kept, with `listing` and `files` in it."""

    tree: str
    folder: Path


@dataclass(frozen=True, kw_only=True)
class Site:
    """What a plan needs to know of the place it is made at; everything else is in the job.

    seed: drawn by the caller, used where the job names none. pyxis: whether the cluster's Slurm has the plugin.
    containers: False for `--no-container`. runs_dir: the folder of all runs, where failed nodes are remembered; a point of a
    sweep lies deeper. avoid: nodes that failed a preflight within the last day. store: of the images, where the cluster's file
    names none. snapshot: of the job's folder; None where the run works in the folder itself.
    """

    run_id: str
    run_dir: Path
    runs_dir: Path
    user: str
    home: str
    data: str
    store: str
    seed: int
    pyxis: bool
    containers: bool = True
    avoid: tuple[str, ...] = ()
    snapshot: Snapshot | None = None
