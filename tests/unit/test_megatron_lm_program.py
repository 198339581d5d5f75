"""launchers/megatron-lm/run.py on a checkout's outline: what is missing is named; the lead signal ends in a save."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import REPO

RUN = REPO / "launchers" / "megatron-lm" / "run.py"
# As DistributedSignalHandler of Megatron-LM does it: TERM sets a flag, the loop sees it, saves, and leaves with 0.
PROGRAM = """
import os, signal, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
print("training", *sys.argv[1:], flush=True)
if "--connections" in sys.argv:
    print("connections", os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS"), flush=True)
while not asked and "--once" not in sys.argv:
    time.sleep(0.01)
print("saved", flush=True)
sys.exit(0)
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "megatron" / "training").mkdir(parents=True)
    for package in ("megatron", "megatron/training"):
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "pretrain_gpt.py").write_text(PROGRAM)
    return tmp_path


def started(checkout: Path, *args: str) -> subprocess.Popen[str]:
    env = {**os.environ, "MEGATRON_LM": str(checkout)}
    argv = [sys.executable, str(RUN), *args]
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def said(checkout: Path, *args: str) -> tuple[int, str]:
    with started(checkout, *args) as process:
        return process.wait(30), process.stdout.read() if process.stdout else ""


def test_arguments_are_passed_on(checkout: Path) -> None:
    assert said(checkout, "--once", "--num-layers", "2") == (
        0,
        "training --once --num-layers 2\nsaved\n",
    )


def test_the_launchers_one_connection_is_not_for_fsdp(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    assert "connections 1\n" in said(checkout, "--once", "--connections")[1]
    assert "connections None\n" in said(checkout, "--once", "--connections", "--use-megatron-fsdp")[1]
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8")
    assert "connections 8\n" in said(checkout, "--once", "--connections", "--use-torch-fsdp2")[1]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGUSR1, 138), (signal.SIGTERM, 0)])
def test_a_signal_ends_in_a_save(checkout: Path, number: signal.Signals, code: int) -> None:
    with started(checkout) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "training\n"
        process.send_signal(number)
        assert process.wait(30) == code
        assert process.stdout.read() == "saved\n"


def test_its_own_failure_stays_its_own(checkout: Path) -> None:
    (checkout / "pretrain_gpt.py").write_text("raise SystemExit(7)")
    assert said(checkout)[0] == 7


def test_what_is_missing_is_named(checkout: Path) -> None:
    (checkout / "pretrain_gpt.py").write_text("from model_provider import model_provider\n")
    assert "model_provider.py is missing beside pretrain_gpt.py" in said(checkout)[1]
    (checkout / "model_provider.py").touch()
    (checkout / "megatron" / "training" / "__init__.py").unlink()
    (checkout / "megatron" / "training").rmdir()
    assert "there is no megatron.training" in said(checkout)[1]
    (checkout / "pretrain_gpt.py").unlink()
    code, text = said(checkout)
    assert code == 1
    assert f"no pretrain_gpt.py in {checkout}" in text


def test_a_torch_for_gpus_that_finds_none_is_left_alone(checkout: Path) -> None:
    """A node whose driver is broken must end the job, and not train on its CPUs."""
    (checkout / "torch.py").write_text(
        "class backends:\n    class cuda:\n        is_built = staticmethod(lambda: True)\n"
    )
    assert said(checkout, "--once", "--num-layers", "2") == (0, "training --once --num-layers 2\nsaved\n")


# Debian 12's Python 3.11.2 has this; it was mended in 3.11.4.
BY_GETATTR = """
import enum, signal
enum.Enum.__reduce_ex__ = lambda self, _: (getattr, (self.__class__, self._name_))
signal.Signals.__reduce_ex__ = lambda self, _: self.name
"""
PICKLES = """
import enum, pickle, pickletools, signal
class Backend(enum.Enum):
    AUTO = 5
written = pickle.dumps((Backend.AUTO, signal.SIGTERM))
names = {text for _, text, _ in pickletools.genops(written) if isinstance(text, str)}
print(*sorted(names & {"getattr", "SIGTERM", "Backend", "Signals"}), *pickle.loads(written))
"""


@pytest.mark.parametrize("python", ["", BY_GETATTR], ids=["this Python", "3.11.2"])
def test_torch_can_load_the_enums_of_its_checkpoints(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: str
) -> None:
    """A stopped run could not continue: "Weights only load failed … Unsupported global: GLOBAL getattr"."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(python)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    (checkout / "pretrain_gpt.py").write_text(PICKLES)
    assert said(checkout) == (0, "Backend Signals Backend.AUTO 15\n")
