"""Measures the page of a wide run: `kit report` of 512 made-up ranks on 64 nodes, against the start of the program alone.

    python -m benchmarks pages [--ranks 512] [--rounds 3]

Needs no Slurm. Times are processor seconds, user and system, so that other work on the machine does not count; medians.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks._common import Goal, report
from kit import shell
from tests.unit.test_reports import make


def main(words: Sequence[str] = ()) -> int:
    """Make the run and its page, and print the table. Returns 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="benchmarks pages")
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="kit-pages-") as made:
        folder = Path(made)
        make(folder / "runs" / "gpt-1", options.ranks, minutes=60)
        # Run once before: then the drawing script is in the cache, as for every page except a user's first.
        _spent(folder, "report", "runs/gpt-1", "-o", "r.html")
        pages = [_spent(folder, "report", "runs/gpt-1", "-o", "r.html") for _ in range(options.rounds)]
        starts = [_spent(folder, "--version") for _ in range(options.rounds)]
        size = (folder / "r.html").stat().st_size
    page, start = statistics.median(pages), statistics.median(starts)
    return report(
        [
            Goal(name=f"page of {options.ranks} ranks", value=page, unit="s", bound=5.0),
            Goal(name="its size", value=size / 1e6, unit="MB", bound=2.0),
            Goal(name="beside the start of the program", value=page / start, unit="x"),
        ]
    )


def _spent(folder: Path, *words: str) -> float:
    """Processor seconds of a command."""
    env = {**os.environ, "XDG_DATA_HOME": str(folder / "data"), "XDG_CACHE_HOME": str(folder / "cache")}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    shell.run([sys.executable, "-m", "kit", *words], cwd=folder, env=env, timeout=300)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
