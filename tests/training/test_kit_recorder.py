"""kit_recorder.py in a program of torch: its last collectives at a pipe's asking, and in the log of one that fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import REPO

pytestmark = pytest.mark.smoke

PROGRAM = """
import os, sys, time
import kit_recorder
import torch
import torch.distributed as dist
path = sys.argv[1]
print(kit_recorder.answer_at(path))
dist.init_process_group("gloo", init_method=f"file://{path}.meet", rank=0, world_size=1)
# A process before it, of the same rank, was killed and left its pipe.
os.mkfifo(f"{path}.ask")
print(kit_recorder.answer_at(path))
for _ in range(10):
    dist.all_reduce(torch.ones(3))
with open(f"{path}.ask", "wb") as pipe:
    pipe.write(b"?")
end = time.monotonic() + 60
while not os.path.exists(path) and time.monotonic() < end:
    time.sleep(0.01)
dist.broadcast(torch.ones(2, 4, dtype=torch.float64), 0)
try:
    raise RuntimeError("of the program")
finally:
    # Otherwise a thread of torch may outlive Python, which aborts the process.
    dist.destroy_process_group()
"""


def test_the_last_collectives_are_told(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "recorder"
    env = {**os.environ, "PYTHONPATH": str(REPO / "templates/kit_node"), "TORCH_FR_BUFFER_SIZE": "100"}
    argv = [sys.executable, "-c", PROGRAM, str(path)]
    done = subprocess.run(argv, env=env, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stdout.split() == ["None", "True"], "asked again with a later step, until there is a process group"
    told = path.read_text().splitlines()
    assert [line.partition(" of ")[0] for line in told] == [f"kit: collective 0 #{n} all_reduce" for n in range(3, 11)]
    assert {line.partition(" of ")[2].removesuffix(" waits") for line in told} == {"Float [[3]]"}, "the last eight"
    assert "RuntimeError: of the program" in done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("kit: collective")]
    assert len(said) == 8
    assert said[-1].startswith("kit: collective 0 #11 broadcast of Double [[2,4]]")
