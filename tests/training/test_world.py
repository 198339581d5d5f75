"""torchrun inside a rank: the real one begins a world of its own, which kit_rank names with the first step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import REPO

pytestmark = pytest.mark.smoke

PROGRAM = """
import sys
import torch.distributed as dist
import kit_rank
progress = kit_rank.RankReporter(folder=sys.argv[1], name="@0")
dist.init_process_group("gloo")
for step in range(3):
    progress.step(step)
print("trained in a world of", dist.get_world_size())
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("planned", "nodes", "code"), [("4", "2", 1), ("2", "2", 1), ("2", "1", 0)])
def test_a_torchrun_inside_the_rank_is_named(tmp_path: Path, planned: str, nodes: str, code: int) -> None:
    pytest.importorskip("torch")
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "reports").mkdir()
    path = os.pathsep.join(filter(None, (str(REPO / "templates/kit_node"), os.environ.get("PYTHONPATH", ""))))
    env = {**os.environ, "PYTHONPATH": path, "KIT_WORLD_SIZE": planned, "KIT_NNODES": nodes, "WORLD_SIZE": planned}
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    argv += [str(tmp_path / "program.py"), str(tmp_path / "reports")]
    done = subprocess.run(argv, env=env, check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == code, done.stderr
    assert ("trained in a world of 2" in done.stdout) == (code == 0)
    said = f"RuntimeError: this process trains in a world of 2, and the run has {planned} ranks on {nodes} nodes"
    assert (said in done.stderr) == (code != 0)
