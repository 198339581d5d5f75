"""`kit convert-checkpoint` in an image: a checkpoint goes in, a whole file or an error comes out, nothing else is left."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from pathlib import Path

import pytest

from kit import data_folders, shell
from kit.checkpoints.convert import lacking
from kit.errors import KitError
from kit.images import check_against_lock, image_lock
from kit.runtimes.base import Container
from kit.runtimes.bubblewrap import runtime
from kit.schema.mount import Mount
from kit.schema.resources_slurm_container import ContainerOptions
from tests import laid_out
from tests.support import REPO

# The GPT of launchers/lib, saved as launchers/fsdp/train.py does.
SAVE = """
import sys; sys.path.insert(0, "/kit/launchers")
import torch, torch.distributed.checkpoint as dcp
from lib.model import GPT, GPTShape
net = GPT(GPTShape(layers=2, heads=4, dim=64, context=32))
dcp.save({"model": net.state_dict()}, checkpoint_id="/kit/work/saved", no_dist=True)
"""


@pytest.fixture
def saved(train_cpu: Path, tmp_path: Path) -> Path:
    """A checkpoint that torch wrote in the image."""
    if shell.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed: make setup")
    lock = image_lock.read_lock(REPO / "containers/train-cpu/image.lock")
    mounts = (
        Mount(source=str(laid_out.BIN), target="/kit/run/bin", flags=("ro",)),
        Mount(source=str(REPO / "launchers"), target="/kit/launchers", flags=("ro",)),
        Mount(source=str(tmp_path), target="/kit/work"),
    )
    container = Container(
        image=str(check_against_lock.check(lock, train_cpu, full=False)),
        mounts=mounts,
        workdir="/",
        options=ContainerOptions(remap_root=False),
        bin=laid_out.BIN,
        home="/",
    )
    shell.run(runtime.wrap([], ["python3", "-c", SAVE], container), timeout=120)
    return tmp_path / "saved"


def kit(*words: object) -> shell.Completed:
    return shell.run([sys.executable, "-m", "kit", "convert-checkpoint", *map(str, words)], cwd=REPO, check=False)


def test_one_file(saved: Path, train_cpu: Path) -> None:
    target = saved.parent / "model.pt"
    done = kit(saved, target, "--to", "pytorch", "--image", "train-cpu", "--store", train_cpu, "--json")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert (made["source"], made["target"]) == (str(saved), str(target))
    assert made["model_config"]["layers"] == 2
    with zipfile.ZipFile(target) as content:
        held = sum(one.file_size for one in content.infolist() if "/data/" in one.filename)
    assert held == made["bytes"]
    shard = next(saved.glob("*.distcp"))
    os.truncate(shard, shard.stat().st_size - 1)
    refused = kit(saved, target, "--to", "pytorch", "--image", "train-cpu", "--store", train_cpu, "--force")
    assert refused.returncode == 7
    assert f"{saved}: incomplete: {shard.name} has" in refused.stderr
    assert sorted(path.name for path in saved.parent.iterdir()) == ["model.pt", "saved"]


def test_an_image_without_safetensors_is_refused(saved: Path, train_cpu: Path) -> None:
    lock = image_lock.read_lock(REPO / "containers/train-cpu/image.lock")
    if not lacking(lock, "huggingface"):
        pytest.skip("train-cpu has safetensors")
    done = kit(saved, saved.parent / "hf", "--to", "huggingface", "--image", "train-cpu", "--store", train_cpu)
    assert done.returncode == 5
    assert "lacks safetensors" in done.stderr
    assert [path.name for path in saved.parent.iterdir()] == ["saved"]


def test_a_folder_for_transformers(saved: Path) -> None:
    store = data_folders.user_data() / "images"
    lock = image_lock.read_lock(REPO / "containers/frameworks-cpu/image.lock")
    if missing := lacking(lock, "huggingface"):
        pytest.skip(f"frameworks-cpu lacks {', '.join(missing)}: add it to its requirements.in and build it")
    try:
        check_against_lock.check(lock, store, full=False)
    except KitError:
        pytest.skip("image frameworks-cpu is not in the store: kit build-image frameworks-cpu")
    target = saved.parent / "hf"
    done = kit(saved, target, "--to", "huggingface", "--heads", 4, "--context", 32)
    assert done.returncode == 0, done.stderr
    config = json.loads((target / "config.json").read_text())
    assert (config["architectures"], config["num_key_value_heads"]) == (["LlamaForCausalLM"], 4)
    assert (target / "model.safetensors").stat().st_size > 4 * 64 * 256
