"""kit_callbacks.py under the real loops: what the rank's own report says while batches are read, computed, evaluated and saved."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from kit import shell
from tests.support import REPO
from tests.training.conftest import free_port

# Says which step and phase this rank's report has, at a place of the loop.
SEEN = """
import json, os, sys
from pathlib import Path
import torch
import kit_callbacks
seen = []
def look(where):
    step, phase = (Path(os.environ["REPORTS"]) / "@0").read_text().split()[:2]
    if (where, int(step), phase) not in seen:
        seen.append((where, int(step), phase))
class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, at):
        look("read")
        return {"x": torch.ones(4), "labels": torch.zeros(1)}
"""

LIGHTNING = """
import PACKAGE as pl
from PACKAGE.callbacks import ModelCheckpoint
class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, _):
        look("compute")
        return self.layer(batch["x"]).square().mean()
    def validation_step(self, batch, _): look("evaluate")
    def on_save_checkpoint(self, checkpoint): look("save")
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), lr=0.1)
class Validation(Data):
    def __getitem__(self, at): return {"x": torch.ones(4)}
save = ModelCheckpoint(dirpath=sys.argv[1], every_n_train_steps=2, save_top_k=-1)
trainer = pl.Trainer(max_steps=4, val_check_interval=4, accumulate_grad_batches=2, callbacks=[kit_callbacks.lightning(), save],
    accelerator="cpu", logger=False, enable_progress_bar=False, num_sanity_val_steps=1)
trainer.fit(Net(), torch.utils.data.DataLoader(Data()), torch.utils.data.DataLoader(Validation()))
look("after")
print(json.dumps(seen))
"""

TRANSFORMERS = """
import transformers
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x, labels=None):
        look("compute" if self.training else "evaluate")
        return {"loss": self.layer(x).square().mean(), "logits": self.layer(x)}
class Saves(transformers.Trainer):
    def _save(self, *args, **options):
        look("save")
        super()._save(*args, **options)
class Validation(Data):
    def __getitem__(self, at): return {"x": torch.ones(4), "labels": torch.zeros(1)}
args = transformers.TrainingArguments(sys.argv[1], max_steps=4, per_device_train_batch_size=1, gradient_accumulation_steps=2,
    eval_strategy="steps", eval_steps=2, save_steps=2, report_to=[], disable_tqdm=True, use_cpu=True, per_device_eval_batch_size=1)
trainer = Saves(Net(), args, train_dataset=Data(), eval_dataset=Validation(), callbacks=[kit_callbacks.transformers()])
trainer.train()
look("after")
print(json.dumps(seen))
"""

# TorchTitan asks its device for a name and for memory, which a CPU does not tell, and for an attention that is refused there: it
# gets the plain one of torch. It trains by launchers/torchtitan/run.py.
TORCHTITAN = """
import runpy
from types import SimpleNamespace
import torch._utils
import torch.distributed.checkpoint.state_dict_saver as saver
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
torch._utils._get_available_device_type = lambda: "cpu"
torch.cpu.get_device_name = lambda *_: "CPU"
torch.cpu.get_device_properties = lambda *_: SimpleNamespace(total_memory=1 << 30)
torch.cpu.reset_peak_memory_stats = torch.cpu.empty_cache = lambda: None
torch.cpu.memory_stats = lambda *_: {}
torch.cpu.current_device = lambda: 0
torch.distributed.set_timeout = lambda *_: None  # of a torch that is newer than 2.13
assets = Path("tests/assets")
(assets / "tokenizer").mkdir(parents=True)
(assets / "c4_test").mkdir()
text = [f"a sentence of words and the number {number}" for number in range(400)]
(assets / "c4_test/data.json").write_text("\\n".join(json.dumps({"text": one}) for one in text))
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
tokenizer.train_from_iterator(text, trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>", "</s>"], show_progress=False))
tokenizer.save(str(assets / "tokenizer/tokenizer.json"))
(assets / "tokenizer/tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
def looks(owner, name, where):
    inner = getattr(owner, name)
    def looked(*args, **options):
        look(where)
        return inner(*args, **options)
    setattr(owner, name, looked)
from torchtitan.models.common.attention import FlexAttention
def attention(q, k, v, *, scale, enable_gqa, **_):
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(q, k, v, is_causal=True, scale=scale, enable_gqa=enable_gqa), SimpleNamespace(lse=None)
FlexAttention._compiled_flex_attn = staticmethod(attention)
from torchtitan.components.tokenizer import HuggingFaceTokenizer
from torchtitan.components.validate import Validator
from torchtitan.trainer import Trainer
looks(HuggingFaceTokenizer, "encode", "read")
looks(Trainer, "forward_backward_step", "compute")
looks(Validator, "post_dataloading_process", "evaluate")
looks(saver, "_save_state_dict", "save")
sys.argv[1:] = ["--module=llama3", "--config=llama3_debugmodel", "--training.steps=4", "--training.seq_len=32",
    "--training.local_batch_size=1", "--validator.enable", "--validator.freq=2", "--validator.steps=1",
    "--validator.dataloader.dataset=c4_test", "--checkpoint.enable", "--checkpoint.interval=2"]
sys.path.insert(0, LAUNCHER)
runpy.run_path(LAUNCHER + "/run.py", run_name="__main__")
print(json.dumps(seen))
"""


@pytest.fixture
def reports() -> Iterator[Path]:
    """The folder that the monitor's step makes on a node; kit_rank finds it by the number of the job."""
    made = Path(f"/dev/shm/kit-{os.geteuid()}-{uuid.uuid4().hex}")
    made.mkdir(mode=0o700)
    yield made
    shutil.rmtree(made)


def seen(program: str, folder: Path, reports: Path, **more: str) -> list[tuple[str, int, str]]:
    env = {
        **{name: value for name, value in os.environ.items() if name not in {"RANK", "KIT_ROLE"}},
        "PYTHONPATH": str(REPO / "templates" / "kit_node"),
        "SLURM_JOB_ID": reports.name.rpartition("-")[2],
        "KIT_RUN_DIR": str(folder),
        "REPORTS": str(reports),
        **more,
    }
    with tempfile.NamedTemporaryFile("w", suffix=".py", dir=folder) as file:
        file.write(f"{SEEN}{program}")
        file.flush()
        done = shell.run([sys.executable, file.name, str(folder)], cwd=folder, env=env, timeout=300)
    return [(where, step, phase) for where, step, phase in json.loads(done.stdout.splitlines()[-1])]


def phases(found: list[tuple[str, int, str]], where: str) -> set[str]:
    return {phase for place, _, phase in found if place == where}


@pytest.mark.parametrize("package", [pytest.param("lightning.pytorch", marks=pytest.mark.smoke), "pytorch_lightning"])
def test_lightning(package: str, tmp_path: Path, reports: Path) -> None:
    if find_spec(package.partition(".")[0]) is None:
        pytest.skip(f"{package} is not installed (make training)")
    found = seen(LIGHTNING.replace("PACKAGE", package), tmp_path, reports)
    assert phases(found, "read") == {"data"}
    assert phases(found, "compute") == {"compute"}
    assert phases(found, "evaluate") == {"evaluate"}
    assert phases(found, "save") == {"save"}
    assert {step for where, step, _ in found if where == "compute"} == {0, 1, 2, 3}, "a step is one of the optimizer"
    assert found[-1] == ("after", 4, "save"), "what follows the loop has the time that a save has"


@pytest.mark.smoke
def test_transformers(tmp_path: Path, reports: Path) -> None:
    if find_spec("transformers") is None or find_spec("accelerate") is None:
        pytest.skip("transformers and accelerate are not installed (make training)")
    found = seen(TRANSFORMERS, tmp_path, reports)
    assert phases(found, "read") == {"data"}
    assert phases(found, "compute") == {"compute"}
    assert phases(found, "evaluate") == {"evaluate"}
    assert phases(found, "save") == {"save"}
    assert {step for where, step, _ in found if where == "compute"} == {0, 1, 2, 3}
    assert found[-1] == ("after", 4, "save")


def test_torchtitan(tmp_path: Path, reports: Path) -> None:
    for package in ("torchtitan", "triton", "tokenizers"):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install torchtitan==0.3.0 triton")
    alone = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    launcher = str(REPO / "launchers" / "torchtitan")
    found = seen(TORCHTITAN.replace("LAUNCHER", repr(launcher)), tmp_path, reports, **alone)
    assert phases(found, "read") == {"data"}
    assert phases(found, "compute") == {"start", "compute"}
    assert phases(found, "evaluate") == {"evaluate"}
    assert phases(found, "save") == {"save"}
    assert {step for where, step, _ in found if where == "compute"} == {0, 1, 2, 3}
