"""Models of Hugging Face as the start of a training, and out again: logits in float32, beside those of transformers."""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="transformers is not installed (make training)")
pytestmark = [pytest.mark.timeout(240), pytest.mark.smoke]
LAUNCHERS = Path(__file__).parents[2] / "launchers"
CLOSE = 2e-5
SIZE: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.1,
}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"rms_norm_eps": 1e-5, "tie_word_embeddings": False}),
    "llama 3": (
        "Llama",
        {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 32}, "tie_word_embeddings": True},
    ),
    "qwen 2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen 3": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": False}),
}


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Import as the programs do."""
    monkeypatch.syspath_prepend(str(LAUNCHERS))
    monkeypatch.syspath_prepend(str(LAUNCHERS / "convert"))
    yield
    for name in ("convert", "huggingface", "names", "shapes", "source", "output", "plain", "pytorch", "confined"):
        sys.modules.pop(name, None)


def saved(folder: Path, name: str) -> tuple[Any, Any, Any]:
    """A small model of transformers' in a folder: the model, tokens, its logits."""
    import torch
    import transformers

    family, more = MODELS[name]
    config = getattr(transformers, f"{family}Config")(**SIZE, **more)
    torch.manual_seed(0)
    made = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() == 1:  # norms and biases, which begin as ones and zeros
                parameter.add_(0.1 * torch.randn_like(parameter))
        tokens = torch.randint(256, (2, 100))
        logits = made(tokens).logits
    made.save_pretrained(folder, max_shard_size="100KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    return made, tokens, logits


@pytest.mark.parametrize("name", MODELS)
def test_a_model_comes_in_and_goes_out_with_its_logits(name: str, tmp_path: Path) -> None:
    import torch
    import transformers
    from lib import huggingface, model

    _, tokens, expected = saved(tmp_path / "hub", name)
    args = argparse.Namespace(init_from=tmp_path / "hub", context=100, seed=1)
    with torch.device("meta"):
        net = model.GPT(huggingface.chosen(args, 256))
    huggingface.begin(net, args, torch.device("cpu"))
    with torch.no_grad():
        assert (net(tokens) - expected).abs().max() < CLOSE
    assert expected.abs().max() > 0.5, "else nothing is compared"

    (tmp_path / "kit").mkdir()
    torch.save({"model": net.state_dict(), "at": {"step": 0}}, tmp_path / "kit" / "state.pt")
    (tmp_path / "kit" / "model.json").write_text(json.dumps(net.described()))
    out(tmp_path / "kit", tmp_path / "back")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back", dtype=torch.float32).eval()
    assert type(again).__name__ == f"{MODELS[name][0]}ForCausalLM"
    with torch.no_grad():
        assert (again(tokens).logits - expected).abs().max() < CLOSE


def out(source: Path, target: Path) -> None:
    """kit convert-checkpoint --to huggingface."""
    sys.modules.pop("huggingface", None)
    import convert

    before, sys.argv = sys.argv, ["convert", str(source), str(target), "--to", "huggingface"]
    try:
        assert convert.main() == 0
    finally:
        sys.argv = before


@pytest.mark.parametrize(
    ("program", "ranks", "name", "layout"),
    [
        ("ddp/train_gpt.py", 1, "qwen 3", ()),
        ("fsdp/train.py", 2, "qwen 3", ()),
        ("megatron/train.py", 2, "qwen 2", ("--tp", 2)),
        ("megatron/train.py", 2, "qwen 3", ("--pp", 2)),
    ],
    ids=["ddp", "fsdp", "megatron-tp", "megatron-pp"],
)
def test_a_program_begins_with_them_and_its_checkpoint_goes_out(  # noqa: PLR0917 - the fixtures after the case
    program: str, ranks: int, name: str, layout: tuple[object, ...], training: Any, tmp_path: Path
) -> None:
    """No step made, so that what comes out is what went in; ranks read the rows, heads and layers that they hold."""
    import torch
    import transformers

    if program.startswith("megatron"):
        pytest.importorskip("megatron", reason="megatron-core is not installed (make training)")
    _, tokens, expected = saved(tmp_path / "hub", name)
    options = (*layout, "--init-from", tmp_path / "hub", "--context", 100, "--steps", 0, "--test-windows", 2)
    run = training.run(program, "run", *options, ranks=ranks)
    out(run.run_dir / "checkpoints", tmp_path / "back")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back", dtype=torch.float32).eval()
    with torch.no_grad():
        assert (again(tokens).logits - expected).abs().max() < CLOSE


def test_deepspeed_begins_with_them_too(training: Any, tools: Any, tmp_path: Path) -> None:
    """ZeRO 3, whose ranks hold parts of parameters: the same test loss as the copy on one rank."""
    pytest.importorskip("deepspeed", reason="deepspeed is not installed (make training)")
    saved(tmp_path / "hub", "qwen 2")
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": 3},
    }
    (tmp_path / "zero3.json").write_text(json.dumps(config))
    options = ("--init-from", tmp_path / "hub", "--context", 64, "--steps", 0, "--test-windows", 4)
    alone = training.run("ddp/train_gpt.py", "ddp", *options, ranks=1)
    parts = training.run("deepspeed/train.py", "deepspeed", *options, "--ds-config", tmp_path / "zero3.json", ranks=2)
    losses = [tools.records(run.run_dir, "final")[0]["test_loss"] for run in (alone, parts)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert losses[0] > 5.7, "drawn weights would be near the logarithm of 256, 5.55"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (None, "no model of Hugging Face: config.json"),
        ({"model_type": "mixtral"}, "its model is 'mixtral'; --init-from takes llama, qwen2, qwen3"),
        ({"mlp_bias": True}, "mlp_bias is True in config.json"),
        ({"max_position_embeddings": 16}, "--context 100 is longer than the model's 16 positions"),
        ({"vocab_size": 100}, "the data have 256 different tokens, and the model knows 100"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rotary positions of type 'yarn'"),
    ],
)
def test_a_folder_that_cannot_be_a_start_is_refused(tmp_path: Path, config: dict[str, Any] | None, said: str) -> None:
    from lib import huggingface

    if config is not None:
        whole = {**SIZE, "model_type": "llama", "rms_norm_eps": 1e-5, **config}
        (tmp_path / "config.json").write_text(json.dumps(whole))
    with pytest.raises(SystemExit, match=said):
        huggingface.shape(tmp_path, context=100, vocabulary=256)


def test_weights_that_are_not_whole_are_refused(tmp_path: Path) -> None:
    from lib import huggingface

    saved(tmp_path, "llama")
    shape = huggingface.shape(tmp_path, context=100, vocabulary=256)
    os.remove(max(tmp_path.glob("*.safetensors")))  # noqa: PTH107
    read = huggingface.reader(tmp_path, shape)
    with pytest.raises(SystemExit, match="is in none of its files"):
        for layer in range(2):
            for name in ("qkv.weight", "down.weight", "gate_up.weight", "attention_norm.weight"):
                read(f"blocks.{layer}.{name}", 0, 1)
        read("norm.weight", 0, 1)
        read("head.weight", 0, 1)
        read("embedding.weight", 0, 1)
