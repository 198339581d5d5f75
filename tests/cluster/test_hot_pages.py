"""The hot pages of an image in real runs: learnt by the first one, in each runtime, and settled by later ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.images import image_lock
from kit.record.hot_pages import FOLDER
from tests.cluster.lab import Lab
from tests.support import REPO

pytestmark = pytest.mark.cluster

# It imports what a training imports, and ends when the test has seen enough.
PROGRAM = """\
import os, pathlib, time
import torch
run = pathlib.Path(os.environ["KIT_RUN_DIR"])
(run / f"up-{os.environ['RANK']}").touch()
while not (run / "finish").exists():
    time.sleep(0.2)
"""


def test_the_first_run_learns_what_it_reads(lab: Lab, runtime: str) -> None:
    if runtime == "bare":
        pytest.skip("a run without a container has no image")
    lab.write('script = "program.py"\nshape = "srun"\n[resources]\nranks_per_node = 1\n', PROGRAM)
    digest = image_lock.read_lock(REPO / "containers/train-cpu/image.lock").sha256
    runs = lab.project / "runs"
    (runs / FOLDER / digest).unlink(missing_ok=True)
    run = lab.submit("--set", f"container.runtime={runtime}")
    try:
        lab.wait((runs / FOLDER / digest).exists, run, seconds=150)
    finally:
        (run / "finish").touch()
    assert lab.wait_end(run)["JobState"] == "COMPLETED"
    first, *lines = (runs / FOLDER / digest).read_text().splitlines()
    assert first in {"# growing", "# settled"}
    ranges = [tuple(map(int, line.split())) for line in lines]
    assert ranges == sorted(ranges)
    size = image_lock.read_lock(REPO / "containers/train-cpu/image.lock").size
    hot = sum(length for _, length in ranges)
    assert 0 < hot < size / 2, (hot, size)
    assert ((runs / FOLDER).stat().st_mode & 0o777, (runs / FOLDER / digest).stat().st_mode & 0o777) == (0o700, 0o600)
    assert lab.settled(run) == []
    assert "hot pages: " in (run / "state" / "hot-pages.log").read_text()
    assert not [log for log in (run / "logs").rglob("*.log") if "hot pages" in log.read_text()], "what users follow"


def test_the_list_goes_with_its_image(lab: Lab, tmp_path: Path) -> None:
    """`kit prune-images` removes an image that nothing names, and its list; the lists of others stay."""
    store, lists = tmp_path / "store", lab.project / "runs" / FOLDER
    (store / "sha256").mkdir(parents=True)
    lists.mkdir(parents=True, exist_ok=True)
    gone, kept = "0" * 64, "1" * 64
    (store / "sha256" / f"{gone}.sqsh").write_bytes(b"old")
    for digest in (gone, kept):
        (lists / digest).write_text("# settled\n")
    lab.kit("prune-images", "--store", str(store), "--older-than", "0", "--dry-run")
    assert (lists / gone).exists()
    lab.kit("prune-images", "--store", str(store), "--older-than", "0")
    assert not (lists / gone).exists()
    assert (lists / kept).exists()
    (lists / kept).unlink()
