"""TorchTitan 0.2.2 trains its debug model on CPUs, as launcher torchtitan starts it: data parallel ranks over gloo."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.foreign.conftest import FOLDER, PYTHON
from tests.support import REPO

RELEASE = FOLDER / "torchtitan-0.2.2"
RUN = REPO / "launchers" / "torchtitan" / "run.py"
TOKENIZER = """\
import sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
ends = ["<|begin_of_text|>", "<|end_of_text|>"]
known = {word: number for number, word in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), *ends])}
tokenizer = Tokenizer(models.BPE(vocab=known, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.add_special_tokens(ends)
tokenizer.save(sys.argv[1])
"""
CONFIG = """\
[metrics]
log_freq = 1
[model]
name = "llama3"
flavor = "debugmodel"
hf_assets_path = "FOLDER/tokenizer"
[optimizer]
lr = 1e-3
[lr_scheduler]
warmup_steps = 2
[training]
local_batch_size = 2
seq_len = 128
dataset = "c4_test"
dataset_path = "FOLDER/text"
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not RELEASE.is_dir(), reason="TorchTitan 0.2.2 is not here: make foreign"),
]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration with a tokenizer of bytes and a text of sums."""
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "text").mkdir()
    subprocess.run([PYTHON, "-c", TOKENIZER, str(tmp_path / "tokenizer" / "tokenizer.json")], check=True)
    ends = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
    (tmp_path / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(ends))
    sums = (" ".join(f"{a} plus {b} is {a + b}." for b in range(40)) for a in range(200))
    lines = "".join(json.dumps({"text": text}) + "\n" for text in sums)
    (tmp_path / "text" / "sums.json").write_text(lines)
    path = tmp_path / "debug.toml"
    path.write_text(CONFIG.replace("FOLDER", str(tmp_path)))
    return path


SHAPES = {
    "DDP": ["--parallelism.data_parallel_replicate_degree=2", "--parallelism.data_parallel_shard_degree=1"],
    "FSDP": ["--parallelism.data_parallel_shard_degree=2"],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_debug_model_trains_twenty_steps(shape: str, config: Path) -> None:
    argv = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(RUN)]
    argv += ["--job.config_file", str(config), "--training.steps=20", *SHAPES[shape]]
    env = {"TORCHTITAN": str(RELEASE), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    env |= {"HF_HOME": str(config.parent / "cache"), "HOME": str(config.parent)}
    done = subprocess.run(argv, cwd=config.parent, env=env, capture_output=True, text=True, timeout=500, check=False)
    said = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    assert done.returncode == 0, said[-4000:]
    losses = {int(step): float(loss) for step, loss in re.findall(r"step: +(\d+) +loss: +([\d.]+)", said)}
    assert set(losses) == set(range(1, 21)), said[-4000:]
    assert losses[20] < losses[1] - 1
