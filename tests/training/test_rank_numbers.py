"""rank_numbers.py: what a rank computes is written step by step, to the bit, and the program computes what it does without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import REPO

pytestmark = pytest.mark.smoke

# FLIP names where one bit is wrong.
PROGRAM = """
import os, sys
import torch
torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
flip = os.environ.get("FLIP")
def wrong(tensor):
    tensor = tensor.clone()
    # The largest, which no ReLU takes away.
    tensor.view(torch.int32).view(-1)[tensor.argmax()] ^= 1
    return tensor
if flip == "gradient":
    net[0].weight.register_hook(wrong)
for step in range(3):
    batch = torch.randn(16, 4)
    hidden = net[0](batch)
    if flip == "forward" and step == 1:
        hidden.data = wrong(hidden.data)
    loss = net[2](net[1](hidden)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item().hex(), sys.argv[1:], __name__)
"""


def run(at: Path, *, wrapped: bool = True, flip: str = "") -> tuple[str, list[dict[str, int]]]:
    """What the program printed, and the lines of rank 3."""
    (at / "program.py").write_text(PROGRAM)
    argv = [
        sys.executable,
        *([str(REPO / "templates/kit_node/rank_numbers.py")] if wrapped else []),
        "program.py",
        "--lr",
        "1",
    ]
    env = {**os.environ, "RANK": "3", "KIT_RUN_DIR": str(at), "FLIP": flip}
    said = subprocess.run(argv, cwd=at, env=env, check=True, capture_output=True, text=True).stdout
    path = at / "ranks/rank-3.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    path.unlink(missing_ok=True)
    return said, lines


def test_each_bit_counts_and_nothing_is_changed(tmp_path: Path) -> None:
    plain, none = run(tmp_path, wrapped=False)
    said, lines = run(tmp_path)
    assert none == []
    assert said == plain
    assert "['--lr', '1'] __main__" in said
    assert [sorted(line) for line in lines] == [["forward", "gradient", "step"]] * 3
    assert run(tmp_path)[1] == lines
    forward = run(tmp_path, flip="forward")[1]
    assert forward[0] == lines[0]
    assert forward[1]["forward"] != lines[1]["forward"]
    gradient = run(tmp_path, flip="gradient")[1]
    assert gradient[0]["forward"] == lines[0]["forward"]
    assert gradient[0]["gradient"] != lines[0]["gradient"]
