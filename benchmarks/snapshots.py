"""Measures a snapshot of 10,000 files and 100 MB against `git stash create` and `rsync -a --link-dest`, and the copy for a run.

    python -m benchmarks snapshots [--files 10000] [--megabytes 100]

Each figure is the median of three. The files are in the page cache. Needs git and rsync on this machine.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks._common import Goal, report
from kit.snapshots import scan
from kit.snapshots.store import Store
from tests import laid_out

_TIMES = 3
_STASH = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "stash", "create"]


class Bench:
    """A repository of `files` files, a store, and a folder that rsync fills."""

    def __init__(self, folder: Path, files: int, size: int) -> None:
        self.folder, self.source = folder, folder / "job"
        self.store = Store(folder / ".snapshots")
        chance = random.Random(7)
        for number in range(files):
            path = self.source / f"pkg{number % 100}" / f"m{number}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(chance.randbytes(size // files))
        for words in (
            ["init", "-q"],
            ["add", "."],
            ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"],
        ):
            subprocess.run(["git", *words], cwd=self.source, check=True)
        self.copies = 0

    def snapshot(self) -> None:
        done = scan.scan(self.source, index=self.store.index(self.source), asked_by="job.toml")
        self.tree = self.store.put(done)

    def forget(self) -> None:
        shutil.rmtree(self.store.root, ignore_errors=True)

    def change(self) -> None:
        (self.source / "pkg0/m0.py").write_bytes(random.randbytes(10_000))

    def stash(self) -> None:
        subprocess.run(_STASH, cwd=self.source, check=True, capture_output=True)

    def rsync(self, *, fresh: bool = False) -> None:
        last = self.folder / f"copy-{self.copies}"
        self.copies += 1
        link = [] if fresh else [f"--link-dest={last}"]
        argv = ["rsync", "-a", "--exclude=.git", *link, f"{self.source}/", f"{self.folder}/copy-{self.copies}/"]
        subprocess.run(argv, check=True)

    def run_copy(self) -> None:
        """The copy that the batch script makes at the first start of a run."""
        run = self.folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        (run / "state").mkdir(parents=True)
        lib = laid_out.LIB
        text = f"KIT_RUN_DIR={run} KIT_SNAPSHOT={self.tree} KIT_TREE={self.tree.name}\nsource {lib}/log.sh\n"
        script = f"set -uo pipefail\n{text}source {lib}/workspace.sh\nworkspace::prepare"
        subprocess.run(["bash", "-c", script], check=True)


def main(options: Sequence[str]) -> int:
    """Return 1 when an unchanged snapshot takes longer than both others, or a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--megabytes", type=int, default=100)
    asked = parser.parse_args(options)
    with tempfile.TemporaryDirectory(prefix="kit-snapshots-") as folder:
        bench = Bench(Path(folder), asked.files, asked.megabytes * 1_000_000)
        # The kit reads files again that were written less than two seconds before.
        time.sleep(2.5)
        first = _median(bench.snapshot, before=bench.forget)
        unchanged = _median(bench.snapshot)
        changed = _median(bench.snapshot, before=bench.change)
        stash = _median(bench.stash, before=bench.change)
        fresh = _median(lambda: bench.rsync(fresh=True))
        linked = _median(bench.rsync)
        relinked = _median(bench.rsync, before=bench.change)
        copy = _median(bench.run_copy)
        bytes_run = sum(
            os.lstat(path).st_size for path in (Path(folder) / "run/workspace").rglob("*") if path.is_file()
        )
    return report(
        [
            Goal(name="first snapshot", value=first, unit="s"),
            Goal(name="unchanged", value=unchanged, unit="s"),
            Goal(name="one file changed", value=changed, unit="s"),
            Goal(name="`git stash create`, one file changed", value=stash, unit="s"),
            Goal(name="`rsync -a`, first", value=fresh, unit="s"),
            Goal(name="`rsync -a --link-dest`, unchanged", value=linked, unit="s"),
            Goal(name="`rsync -a --link-dest`, one file changed", value=relinked, unit="s"),
            Goal(name=f"copy of the run's own, checked, {bytes_run // 10**6} MB", value=copy, unit="s"),
            Goal(name="unchanged / `rsync --link-dest`, unchanged", value=unchanged / linked, bound=1),
            Goal(name="one changed / `rsync --link-dest`, one changed", value=changed / relinked, bound=2),
            Goal(name="unchanged / `git stash create`", value=unchanged / stash),
        ]
    )


def _median(work: Callable[[], None], *, before: Callable[[], None] | None = None) -> float:
    """Median seconds of the work alone."""
    taken = []
    for _ in range(_TIMES):
        if before:
            before()
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)
