"""make gpu-check, on a machine without GPUs: it reports that, or runs the programs in small."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check.py"


def check(*options: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *options],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(SCRIPT.parents[1]), "CUDA_VISIBLE_DEVICES": "", **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.smoke
@pytest.mark.timeout(300)
def test_on_cpus_each_program_has_its_line(tmp_path: Path) -> None:
    done = check("--device", "cpu", "--only", "ddp-images,fsdp fp32,fsdp bf16 compiled,sft", TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = {line.split("  ")[0]: line for line in done.stdout.splitlines()}
    assert " ok " in lines["ddp-images"]
    assert " ok " in lines["fsdp fp32"]
    assert " ok " in lines["sft"]
    assert " to " in lines["fsdp fp32"], "its first and last loss"
    assert "skipped  for GPUs" in lines["fsdp bf16 compiled"]


@pytest.mark.smoke
def test_without_a_gpu_it_says_so_with_a_code_of_its_own() -> None:
    done = check()
    assert done.returncode == 69
    assert done.stderr.startswith("gpu-check: torch sees no GPU here. `--device cpu`")


def test_a_program_that_fails_has_its_line_and_the_code() -> None:
    """Its 64 images of a step cannot be shared by three ranks."""
    done = check("--device", "cpu", "--only", "ddp-images", "--ranks", "3")
    assert done.returncode == 1
    assert "FAILED  code 1" in done.stdout
