"""The images for NVIDIA GPUs, built from their locks: `make gpu-images`. The build needs no GPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kit import shell
from kit.images import image_lock, store
from kit.images.sources import engine as engines
from tests.cluster.image_lab import mounted, needs_root
from tests.support import REPO

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(3600)]
NEEDED = 25 * 10**9  # bytes of disk
ASK = "import json, torch; print(json.dumps([torch.version.cuda, torch.cuda.nccl.version()]))"


@needs_root
@pytest.mark.parametrize("image", ["train-gpu", "frameworks-gpu"])
def test_its_torch_is_for_cuda_and_has_nccl(image: str, engine: engines.Engine, tmp_path: Path) -> None:
    if os.environ.get("KIT_GPU_IMAGES") != "1":
        pytest.skip("make gpu-images builds them: 25 GB of disk, and an index with NVIDIA's wheels")
    if shutil.disk_usage(tmp_path).free < NEEDED:
        pytest.skip(f"less than {NEEDED / 1e9:.0f} GB free below {tmp_path}")
    project = tmp_path / "project"
    shutil.copytree(REPO / "containers" / image, project / "containers" / image)
    build = [sys.executable, "-m", "kit", "build-image", image, "--store", str(tmp_path / "store")]
    subprocess.run(build, cwd=project, env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}, check=True)
    try:
        locked = image_lock.read_lock(project / "containers" / image / image_lock.FILE)
        assert locked.reproducible
        with mounted(store.path(tmp_path / "store", locked.sha256), tmp_path / "tree") as tree:
            told = json.loads(shell.run(["chroot", str(tree), "/opt/venv/bin/python", "-c", ASK]).stdout)
    finally:
        engine.remove(f"kit-image/{image}:latest")
    assert told == ["13.0", [2, 29, 7]]
