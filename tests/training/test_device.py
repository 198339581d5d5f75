"""`--device auto` in a job that has GPUs: the program ends and says what is missing, and does not compute on CPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import REPO

pytestmark = pytest.mark.smoke

ASK = """
import os, sys
import torch
from lib import device
torch.cuda.is_available = lambda: False
for asked, given in (("auto", ""), ("auto", "cuda"), ("cpu", "cuda"), ("cuda", "")):
    os.environ["KIT_DEVICE"] = given
    if not given:
        del os.environ["KIT_DEVICE"]
    try:
        print(asked, given or "-", device.use_gpu(asked))
    except SystemExit as end:
        print(asked, given or "-", end.code)
torch.backends.cuda.is_built = lambda: True
os.environ["CUDA_VISIBLE_DEVICES"] = ""
print(device.missing()[0])
del os.environ["CUDA_VISIBLE_DEVICES"]
torch.version.cuda = "13.0"
device.Path = lambda name: __import__("pathlib").Path("/nowhere" + name)
print(device.missing()[0])
"""


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(REPO / "launchers")}
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=env, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    lines = [line for line in done.stdout.splitlines() if not line.startswith("  try: ")]
    import torch

    none = f"and torch finds none: torch {torch.__version__} is a build for CPUs"
    assert lines == [
        "auto - False",
        f"auto cuda this job has GPUs, {none}",
        "cpu cuda False",
        f"cuda - --device cuda, {none}",
        "CUDA_VISIBLE_DEVICES is empty, so this process may use no GPU",
        "/dev/nvidiactl is not there, so this node or container has no NVIDIA GPU",
    ]


def test_a_program_ends_before_it_meets_the_others(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(REPO / "launchers"), "KIT_DEVICE": "cuda", "CUDA_VISIBLE_DEVICES": ""}
    argv = [sys.executable, str(REPO / "launchers/ddp/train.py"), "--run-dir", str(tmp_path / "run")]
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("this job has GPUs, and torch finds none: ")
    assert "--device cpu" in done.stderr
