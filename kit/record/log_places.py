"""Every file with the output of a run: of its batch script, and of each rank.

A job may send its batch script's output elsewhere (slurm.output, slurm.error): lib/output_links.sh links it. torchrun may write the
output of ranks to files of its own (torchrun.tee, redirects, log_dir): bin/torchrun-rank.sh links these beside the rank's log, for
each start.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from kit.schema.run_paths import CONTAINER_RUN, CONTAINER_WORKSPACE, RunPaths

# The folder in logs/ of torchrun's files, where the job names none.
TORCHRUN = "torchrun"
_STREAMS = ("stderr", "stdout")
_BATCH = re.compile(r"(batch|error)-(\d{1,18})\.log")


def of_rank(folder: Path, rank: int) -> list[Path]:
    """The existing files of a rank's newest start: torchrun's of standard error, the rank's own log, torchrun's of standard output.

    folder: logs/, or a role's.
    """
    start = 1
    while any(_stream(folder, rank, start + 1, stream) for stream in _STREAMS):
        start += 1
    stderr, stdout = (_stream(folder, rank, start, stream) for stream in _STREAMS)
    own = folder / f"rank-{rank}.log"
    return [*stderr, *([own] if own.exists() else []), *stdout]


def _stream(folder: Path, rank: int, start: int, stream: str) -> list[Path]:
    path = folder / f"rank-{rank}.{start}.{stream}.log"
    return [path] if os.path.lexists(path) else []


def batch(run_dir: Path) -> list[Path]:
    """The files of the newest batch script's output, its standard error first: logs/batch.log, or links to the job's own files."""
    paths = RunPaths(run_dir)
    logs = [
        (int(named[2]), named[1] != "error", path)
        for path in paths.logs.glob("*.log")
        if (named := _BATCH.fullmatch(path.name))
    ]
    newest = max((job for job, _, _ in logs), default=0)
    linked = [path for job, _, path in sorted(logs) if job == newest]
    return linked or [paths.batch_log]


def real(run_dir: Path, path: Path) -> Path:
    """Where a linked log is outside the container; the path itself for any other."""
    try:
        target = PurePosixPath(path.readlink())
    except OSError:
        return path
    if ".." in target.parts:
        # A program in the container made it; it may lead anywhere.
        return path
    for inside, outside in ((CONTAINER_RUN, run_dir), (CONTAINER_WORKSPACE, RunPaths(run_dir).workspace)):
        if target.is_relative_to(inside):
            return outside / target.relative_to(inside)
    return path
