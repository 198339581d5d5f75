"""The images for NVIDIA GPUs: which packages their locks name, and what their recipes must say for a container to see a GPU."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from kit.config import load_model
from kit.errors import LockError
from kit.images.build import dockerfile_needs, requirements_lock
from kit.planning.cpu_builds import cpu_build
from kit.schema.image import ImageSpec, Packages
from tests.support import REPO

IMAGES = ("train-gpu", "frameworks-gpu")
CONTAINERS = REPO / "containers"
# What torch 2.13.0 of PyPI requires on Linux, by its METADATA.
CUDA = {
    "cuda-toolkit": "13.0.3.0",
    "nvidia-cudnn-cu13": "9.20.0.48",
    "nvidia-cusparselt-cu13": "0.8.1",
    "nvidia-nccl-cu13": "2.29.7",
    "nvidia-nvshmem-cu13": "3.4.5",
    "triton": "3.7.1",
}
# Of the extras of cuda-toolkit that torch asks for.
PARTS = {
    *("cublas", "cuda-cupti", "cuda-nvrtc", "cuda-runtime", "cufft", "cufile"),
    *("curand", "cusolver", "cusparse", "nvjitlink", "nvtx"),
}


def locked(image: str) -> dict[str, str]:
    """Name -> version of the packages that the image's requirements.lock names."""
    text = (CONTAINERS / image / "requirements.lock").read_text(encoding="utf-8")
    return dict(re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)", text, flags=re.MULTILINE))


def spec_of(image: str) -> ImageSpec:
    return load_model(CONTAINERS / image / "image.toml", ImageSpec)


@pytest.mark.parametrize("image", IMAGES)
def test_the_lock_has_torch_for_cuda_with_all_that_it_loads(image: str) -> None:
    packages = locked(image)
    assert packages["torch"] == "2.13.0"
    assert cpu_build(Packages(pip=packages)) is None
    assert {name: packages.get(name) for name in CUDA} == CUDA
    assert {f"nvidia-{part}" for part in PARTS} <= packages.keys()
    nccl = re.search(r"NCCL ([\d.]+)", spec_of(image).description)
    assert nccl is not None
    assert nccl[1] == packages["nvidia-nccl-cu13"]


@pytest.mark.parametrize("image", IMAGES)
def test_every_package_has_hashes(image: str) -> None:
    text = (CONTAINERS / image / "requirements.lock").read_text(encoding="utf-8").replace("\\\n", " ")
    entries = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert len(entries) == len(locked(image)) > 30
    assert [entry for entry in entries if not re.fullmatch(r"\S+==\S+(\s+--hash=sha256:[0-9a-f]{64})+", entry)] == []


def test_the_lock_of_train_gpu_is_that_of_its_requirements(tmp_path: Path) -> None:
    """The kit would resolve again, and `--locked` would refuse, if requirements.txt, Python or platforms had changed."""
    spec = spec_of("train-gpu")
    assert spec.python is not None
    for name in ("requirements.txt", "requirements.lock"):
        (tmp_path / name).write_bytes((CONTAINERS / "train-gpu" / name).read_bytes())
    assert not requirements_lock.refresh(spec.python, tmp_path, {}, locked=True, on_line=print)
    (tmp_path / "requirements.txt").write_text("torch===2.13.1\n")
    with pytest.raises(LockError, match="made from another requirements"):
        requirements_lock.refresh(spec.python, tmp_path, {}, locked=True, on_line=print)


def test_the_lock_of_frameworks_gpu_is_both_locks_together() -> None:
    merged = runpy.run_path(str(REPO / "scripts" / "lock_gpu_frameworks.py"))["merged"]
    assert (CONTAINERS / "frameworks-gpu" / "requirements.lock").read_text(encoding="utf-8") == merged()
    assert locked("train-gpu").items() <= locked("frameworks-gpu").items()
    assert locked("frameworks-cpu").keys() <= locked("frameworks-gpu").keys()


@pytest.mark.parametrize("image", IMAGES)
def test_a_container_of_it_sees_the_nodes_gpus(image: str) -> None:
    """Without the first, Enroot's hook mounts no GPU; without `compute` in the second, no libcuda.so."""
    text = (CONTAINERS / image / "Dockerfile").read_text(encoding="utf-8")
    assert {"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"} <= set(text.split())
    dockerfile_needs.read_dockerfile(CONTAINERS / image / "Dockerfile", target=None)


@pytest.mark.parametrize("image", IMAGES)
def test_the_platforms_are_those_of_nvidias_wheels(image: str) -> None:
    """pip takes a wheel only for a tag that is named: these are of cuDNN, CUPTI, cuda-bindings and NCCL."""
    python = spec_of(image).python
    assert python is not None
    assert {f"manylinux_2_{minor}_x86_64" for minor in (27, 25, 24, 18)} <= set(python.platforms)
