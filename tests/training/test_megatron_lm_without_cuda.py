"""launchers/megatron-lm/on_cpus.py on an outline of Megatron-LM: the CPU answers for CUDA, and random numbers repeat."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest

from tests.support import REPO

RUN = REPO / "launchers" / "megatron-lm" / "run.py"
OUTLINE = """
import sys
import torch
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker, model_parallel_cuda_manual_seed

print(*sys.argv[1:])
assert torch.cuda.is_available() and torch.cuda.device_count() == 1
assert torch.ones(2, device=torch.cuda.current_device()).device == torch.ones(2).cuda().device == torch.device("cpu")
assert torch.ones(2).type() == "torch.cuda.FloatTensor"
with torch.cuda.stream(torch.cuda.Stream()):
    torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())

# Tensor parallel ranks draw from the tracker's state, which must come back as Megatron-LM left it: so a checkpoint restores it.
model_parallel_cuda_manual_seed(1, tp_rank=0, ep_rank=0, etp_rank=0)
tracker = get_cuda_rng_tracker()
saved, outside = tracker.get_states(), torch.cuda.get_rng_state()
with tracker.fork():
    first = torch.rand(4)
assert torch.equal(torch.cuda.get_rng_state(), outside)
with tracker.fork():
    second = torch.rand(4)
assert not torch.equal(first, second)
tracker.set_states(saved)
with tracker.fork():
    assert torch.equal(torch.rand(4), first)
torch.cuda.set_rng_state(outside)
one = torch.rand(4)
torch.cuda.set_rng_state(outside)
assert torch.equal(torch.rand(4), one) and not torch.equal(one, first)

# Compiled once with megatron-core's wheel, and not with make in the checkout, which may be read-only.
from megatron.core.datasets import helpers_cpp
from megatron.core.datasets.utils import compile_helpers

assert compile_helpers() is None and helpers_cpp.build_sample_idx_int32
print("as CUDA would")
"""


def test_the_cpu_answers_for_cuda(tmp_path: Path) -> None:
    import torch

    if torch.backends.cuda.is_built():
        pytest.skip("this torch has CUDA")
    if util.find_spec("megatron") is None:
        pytest.skip("megatron-core is not installed")
    (tmp_path / "megatron" / "training").mkdir(parents=True)
    (tmp_path / "pretrain_gpt.py").write_text(OUTLINE)
    env = {**os.environ, "MEGATRON_LM": str(tmp_path), "PYTHONPATH": str(REPO / "launchers")}
    argv = [sys.executable, str(RUN), "--num-layers", "2", "--transformer-impl", "mine"]
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    words, last = done.stdout.splitlines()[-2:]
    assert words.endswith("--num-layers 2 --transformer-impl mine"), "the job's own options win"
    assert "--distributed-backend gloo" in words
    assert last == "as CUDA would"
    assert "torch has no CUDA: Megatron-LM runs on the CPU" in done.stderr
