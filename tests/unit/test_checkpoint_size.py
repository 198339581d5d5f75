"""The weight of a checkpoint, against models whose parameters are published, and what the kit refuses before it converts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from kit import model_size, shell
from kit.checkpoints import convert
from kit.errors import RunError, UsageError
from kit.model_size import ModelShape, Parallelism, shape_of
from tests.support import REPO, make_lock

# Of the published config.json; parameters as transformers counts them.
LLAMA_2_7B = {"layers": 32, "dim": 4096, "heads": 32, "ffn": 11008, "vocab": 32000}
LLAMA_2_70B = {"layers": 80, "dim": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672, "vocab": 32000}
LLAMA_3_8B = {"layers": 32, "dim": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 128256}
SMALL = {"layers": 4, "dim": 64, "heads": 4, "vocab": 256}


def shape(**options: int | bool | None) -> ModelShape:
    return shape_of(options)


def kit(*words: object, cwd: Path = REPO) -> shell.Completed:
    return shell.run([sys.executable, "-m", "kit", *map(str, words)], cwd=cwd, check=False, timeout=60)


@pytest.mark.parametrize(
    ("options", "parameters"),
    [(LLAMA_2_7B, 6_738_415_616), (LLAMA_2_70B, 68_976_648_192), (LLAMA_3_8B, 8_030_261_248)],
    ids=["llama-2-7b", "llama-2-70b", "llama-3-8b"],
)
def test_parameters_are_the_published_ones(options: dict[str, int], parameters: int) -> None:
    assert shape(**options).parameters == parameters


def test_tied_embeddings_count_once() -> None:
    assert shape(**SMALL).parameters - shape(**SMALL, tied=True).parameters == 256 * 64


@pytest.mark.parametrize(
    ("precision", "optimizer", "distributed", "each"),
    [
        ("fp32", "adam", False, 12),
        ("bf16", "adam", False, 14),
        ("bf16", "adam", True, 14),
        ("fp32", "adam", True, 16),
        ("fp32", "sgd", False, 8),
        ("bf16", "none", False, 2),
    ],
)
def test_bytes_of_a_parameter(
    precision: model_size.Precision, optimizer: model_size.Optimizer, distributed: bool, each: int
) -> None:
    assert (
        model_size.checkpoint_bytes(1000, precision, optimizer, distributed_optimizer=distributed).total == 1000 * each
    )


def test_the_largest_share_of_one_rank_is_all() -> None:
    one = shape(**SMALL)
    assert (
        model_size.largest_share(one, "bf16", "adam", Parallelism())
        == model_size.checkpoint_bytes(one.parameters, "bf16", "adam").total
    )


def test_shares_of_a_layout_hold_the_model() -> None:
    one = shape(**LLAMA_3_8B)
    total = model_size.checkpoint_bytes(one.parameters, "bf16", "adam").total
    share = model_size.largest_share(one, "bf16", "adam", Parallelism(tp=4, pp=4))
    assert total / 16 < share < total / 16 * 1.2
    dealt = Parallelism(tp=4, pp=4, dp=8, distributed_optimizer=True)
    assert model_size.largest_share(one, "bf16", "adam", dealt) == pytest.approx(share * (2 + 12 / 8) / 14, rel=1e-6)


def test_layouts_that_cannot_be_are_refused_with_their_numbers() -> None:
    with pytest.raises(UsageError, match=r"--kv-heads 8 cannot be divided by 16 ranks"):
        model_size.largest_share(shape(**LLAMA_3_8B), "bf16", "adam", Parallelism(tp=16))
    with pytest.raises(UsageError, match=r"--kv-heads 3 must divide --heads 4"):
        shape(**SMALL, kv_heads=3)
    with pytest.raises(UsageError, match=r"--dim, --heads, --vocab"):
        shape(layers=2)


def test_a_config_json_says_the_shape_and_options_win(tmp_path: Path) -> None:
    config = {
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert shape_of({}, tmp_path) == shape(**LLAMA_3_8B)
    assert shape_of({"layers": 2}, tmp_path).layers == 2
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(RunError, match=r"cannot be read as a config\.json"):
        shape_of({}, tmp_path)


def test_the_command_compares_with_the_disk(tmp_path: Path) -> None:
    saved = tmp_path / "checkpoints" / "step-00000002"
    saved.mkdir(parents=True)
    (saved.parent / "latest").write_text("step-00000002\n")
    for number in range(2):
        (saved / f"__{number}_0.distcp").write_bytes(b"\0" * 2_000_000)
    words = [word for name, value in SMALL.items() for word in (f"--{name}", value)]
    done = kit("checkpoint-size", *words, "--compare", saved.parent, "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    parameters = shape(**SMALL).parameters
    assert (facts["parameters"], facts["total"]) == (parameters, 12 * parameters)
    assert facts["compare"]["on_disk"] == 4_000_000
    assert facts["compare"]["difference"] == 4_000_000 - 12 * parameters
    assert "+" in kit("checkpoint-size", *words, "--compare", saved).stdout.splitlines()[-1]
    assert kit("checkpoint-size", *words, "--compare", tmp_path).returncode == 7
    assert kit("checkpoint-size", "--layers", 2).returncode == 2


def test_model_and_checkpoint_size_count_one_model() -> None:
    words = ("--layers", 12, "--dim", 768, "--heads", 12, "--vocab", 32000)
    for more in ((), ("--no-gated", "--biases", "--tied", "--kv-heads", 4, "--ffn", 512)):
        counts = {
            json.loads(kit(c, *words, *more, "--json").stdout)["parameters"] for c in ("model", "checkpoint-size")
        }
        assert len(counts) == 1
    assert kit("model", *words, "--json").stdout.splitlines()[2] == '  "parameters": 162417408,'


def test_a_conversion_is_refused_before_anything_starts(tmp_path: Path) -> None:
    source, there = tmp_path / "saved", tmp_path / "model.pt"
    source.mkdir()
    there.write_text("mine")
    for words, code, said in (
        ((source, there, "--to", "pytorch"), 7, "--force"),
        ((tmp_path / "none", tmp_path / "new.pt", "--to", "pytorch"), 7, "no such folder"),
        ((source, tmp_path / "no" / "new.pt", "--to", "pytorch"), 7, "no does not exist"),
        ((source, source / "new.pt", "--to", "pytorch"), 2, "or lie inside it"),
        ((source, tmp_path, "--to", "huggingface", "--force"), 2, "must not contain the checkpoint"),
    ):
        done = kit("convert-checkpoint", *words)
        assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert there.read_text() == "mine"


def test_an_image_is_judged_by_its_lock() -> None:
    lock = make_lock()  # which holds torch alone
    assert convert.lacking(lock, "pytorch") == ["numpy"]
    assert convert.lacking(lock, "huggingface") == ["numpy", "safetensors"]


def test_a_run_folder_stands_for_its_checkpoints(tmp_path: Path) -> None:
    """With a manifest or without one: a program that was started by hand writes none."""
    run = tmp_path / "run"
    saved = run / "checkpoints" / "step-00000002"
    saved.mkdir(parents=True)
    (saved / "complete.json").write_text("{}")
    (run / "checkpoints" / "latest").write_text("step-00000002\n")
    for given, taken in ((run, run / "checkpoints"), (run / "checkpoints", run / "checkpoints"), (saved, saved)):
        assert convert._checkpoint(given) == taken
    (run / "manifest.json").write_text("{}")
    assert convert._checkpoint(run) == run / "checkpoints"
    # A checkpoint that happens to have a folder of this name is a checkpoint.
    (saved / "checkpoints").mkdir()
    assert convert._checkpoint(saved) == saved
