"""Megatron-LM's own pretrain_gpt.py trains on CPUs, as launcher megatron-lm starts it: two ranks over gloo, without a container.

MEGATRON_LM=/path/to/Megatron-LM-core_v0.16.1 pytest -m slow tests/training/test_megatron_lm_on_cpus.py
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kit import config
from kit.allocation import allocate
from kit.frameworks import prepare_extra
from tests.support import REPO

CHECKOUT = Path(os.environ.get("MEGATRON_LM", "/opt/Megatron-LM"))
RUN = REPO / "launchers" / "megatron-lm" / "run.py"
NEEDED = ("torch", "megatron.core", "six", "einops", "regex", "yaml", "triton")


def why_not() -> str:
    """What is missing to train; empty when nothing is."""
    info = CHECKOUT / "megatron" / "core" / "package_info.py"
    if not (CHECKOUT / "pretrain_gpt.py").is_file() or not info.is_file():
        return "no checkout of Megatron-LM: MEGATRON_LM names none"
    if re.findall(r"^(?:MAJOR|MINOR) = (\d+)$", info.read_text(encoding="utf-8"), re.MULTILINE) != ["0", "16"]:
        return "the checkout of Megatron-LM is not of release 0.16, the one that the launcher runs on CPUs"
    lacking = [name for name in NEEDED if not _installed(name)]
    return f"Megatron-LM needs what is not installed: {', '.join(lacking)}" if lacking else ""


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")]


def trained(run_dir: Path, *more: str) -> dict[int, float]:
    """The example on two ranks, with options after its own: step -> loss."""
    resolved = config.load_job(REPO / "examples" / "megatron-lm-cpu" / "job.toml", cluster="local")
    args = prepare_extra(resolved, allocate(resolved), {"megatron-core": "0.16.1"}).args
    words = [word.replace("{run}", str(run_dir)) for word in args]
    argv = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        str(RUN),
        *words,
        *more,
    ]
    env = {**os.environ, "MEGATRON_LM": str(CHECKOUT), "OMP_NUM_THREADS": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    env |= {"PYTHONPATH": str(REPO / "launchers"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(argv, cwd=run_dir, env=env, capture_output=True, text=True, timeout=550, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-6000:]
    steps = re.findall(r"iteration +(\d+)/ +\d+ \|.*? lm loss: ([-+.\dE]+)", said)
    return {int(step): float(loss) for step, loss in steps}


def test_it_continues_in_another_layout_to_the_same_loss(tmp_path: Path) -> None:
    """Ten steps by data parallelism and ten by tensor parallelism are twenty steps: what the CPU computes is the same model."""
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    whole = trained(tmp_path / "whole")
    assert set(whole) == set(range(1, 21))
    assert whole[20] < whole[1] - 2
    first = trained(tmp_path / "stopped", "--exit-interval", "10")
    assert first == {step: loss for step, loss in whole.items() if step <= 10}
    second = trained(tmp_path / "stopped", "--tensor-model-parallel-size", "2")
    assert set(second) == set(range(11, 21))
    # The second line after a start is Megatron-LM's mean of both steps so far.
    expected = {**whole, 12: (whole[11] + whole[12]) / 2}
    assert second == pytest.approx({step: expected[step] for step in second}, abs=1e-4)
