"""Inputs of a plan that depend on the machine and the time, such as paths and the run's id."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The run's copy of the workspace. tree: its hash. folder: of the tree, with `listing` and `files` in it."""

    tree: str
    folder: Path


@dataclass(frozen=True, kw_only=True)
class Site:
    """The facts about the place of planning that a plan needs; all other facts are in the job.

    seed: drawn by the caller; used if the job sets none. pyxis: whether the cluster's Slurm has the plugin. containers: False for
    `--no-container`. runs_dir: the folder of all runs, which also records failed nodes; points of a sweep are deeper in it. avoid:
    nodes that failed a preflight within the last day. store: of the images, if the cluster's file names none. snapshot: of the
    job's folder; None if the run works in that folder itself. node_order: for `kit rerun --rotate`, the nodes in the order of the
    ranks; empty for Slurm's own order.
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
    node_order: tuple[str, ...] = ()
