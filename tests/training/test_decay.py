"""Weight decay of matrices only, in every program, against plain torch; and checkpoints of runs that decayed norms and biases."""

import argparse
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(240)
LAUNCHERS = Path(__file__).parents[2] / "launchers"
# A decay of a fifth in each step: norms that decayed would change the losses in the first digit.
LR, DECAY, STEPS, BATCH = 0.01, 20.0, 3, 8
MODEL = ("--layers", 2, "--dim", 32, "--heads", 2, "--context", 32, "--seed", 7, "--test-windows", 8)
PACE = (
    *("--steps", STEPS, "--lr", LR, "--weight-decay", DECAY, "--log-every", 1),
    *("--warmup", 0, "--decay", 0, "--schedule", "wsd"),
)


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Import as the programs do."""
    monkeypatch.syspath_prepend(str(LAUNCHERS))


def plain(folder: str, norms_decay: float) -> list[float]:
    """The losses of the steps, by torch alone: its AdamW with two groups that are named here."""
    import torch
    from lib import data, huggingface, model, options, text
    from lib.ranks import Ranks

    torch.set_num_threads(1)
    made = argparse.ArgumentParser()
    options.add_text(made)
    given = argparse.Namespace(context=32, **vars(made.parse_args([])))
    train_set = text.load(given, Path(folder), lambda _: None).train
    with torch.device("meta"):
        net = model.GPT(model.GPTShape(layers=2, heads=2, dim=32, context=32))
    huggingface.begin(net, argparse.Namespace(init_from=None, seed=7), torch.device("cpu"))
    named = dict(net.named_parameters())
    norms = {name for name in named if name.split(".")[-2].endswith("norm")}
    groups = [
        {"params": [one for name, one in named.items() if name not in norms], "weight_decay": DECAY},
        {"params": [one for name, one in named.items() if name in norms], "weight_decay": norms_decay},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95))
    shared: dict[str, Any] = {
        "ddp_local_rank": 0,
        "nodes": 1,
        "device": torch.device("cpu"),
        "backend": "gloo",
        "control": None,
    }
    batches = data.batches(train_set, BATCH, Ranks(ddp_rank=0, ddp_world_size=1, **shared), seed=7, samples=0)
    losses = []
    for _ in range(STEPS):
        loss = net(*next(batches))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    return losses


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """In a process of its own, with one thread. Norms that decay would give other losses by far more than rounding."""
    place = str(tmp_path_factory.mktemp("plain"))
    code = f"import json, runpy; plain = runpy.run_path({__file__!r})['plain']; "
    code += f"print(json.dumps([plain({place!r}, norms) for norms in (0.0, {DECAY})]))"
    environ = os.environ | {"PYTHONPATH": str(LAUNCHERS), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    right, wrong = json.loads(done.stdout.splitlines()[-1])
    assert abs(right[-1] - wrong[-1]) > 0.01
    return list(right)


@pytest.mark.parametrize(
    ("program", "options", "config"),
    [
        ("ddp/train_gpt.py", (), None),
        ("fsdp/train.py", (), None),
        ("fsdp/train.py", ("--replicate", 2), None),
        ("deepspeed/train.py", (), {"stage": 1}),
        ("deepspeed/train.py", (), {"stage": 3}),
        ("deepspeed/train.py", (), {"stage": 2, "own": True}),
    ],
    ids=lambda value: str(value) if value else "",
)
def test_the_first_steps_are_those_of_plain_torch(  # noqa: PLR0917 - fixtures
    program: str,
    options: tuple[object, ...],
    config: dict[str, Any] | None,
    expected: list[float],
    training: Any,
    tools: Any,
) -> None:
    if config is not None:
        pytest.importorskip("deepspeed", reason="deepspeed is not installed (make training)")
    batch: tuple[object, ...] = ("--batch-size", BATCH)
    if config is not None:
        made: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": BATCH // 2,
            "gradient_clipping": 1.0,
            "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": {"stage": config["stage"]},
        }
        if config.get("own"):
            params = {"lr": LR, "betas": [0.9, 0.95], "weight_decay": DECAY, "torch_adam": True}
            made["optimizer"] = {"type": "AdamW", "params": params}
        path = training.folder / "ds.json"
        path.write_text(json.dumps(made))
        batch = ("--ds-config", path)
    run = training.run(program, "run", *MODEL, *batch, *PACE, *options)
    losses = [values[0] for values in tools.curve(run.run_dir, "loss").values()]
    assert losses == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("options", [(), ("--distributed-optimizer",)], ids=["", "distributed"])
def test_megatrons_norms_stay_near_one(options: tuple[object, ...], training: Any) -> None:
    """Its model begins with other weights than lib/model.py. Norms that decayed by a fifth in each step would end near 0.5."""
    pytest.importorskip("megatron", reason="megatron-core is not installed (make training)")
    import torch
    from torch.distributed.checkpoint import FileSystemReader, load

    run = training.run("megatron/train.py", "run", *MODEL, "--batch-size", BATCH, *PACE, *options, ranks=1)
    reader = FileSystemReader(run.run_dir / "checkpoints" / f"step-{STEPS:08d}")
    held = reader.read_metadata().state_dict_metadata
    names = [name for name in held if "norm" in name and not name.startswith("optimizer")]
    norms: dict[str, Any] = {name: torch.empty(held[name].size) for name in names}
    load(norms, storage_reader=reader, no_dist=True)
    assert len(norms) == 3
    # A step of AdamW moves a weight by about the learning rate.
    assert max(float((norm - 1).abs().max()) for norm in norms.values()) < 2 * STEPS * LR


@pytest.mark.parametrize("older", [{}, {"weight_decay_on": "all"}])
def test_a_checkpoint_of_a_run_that_decayed_norms_is_refused(older: dict[str, str]) -> None:
    """Its optimizer has one group of parameters, and its curve is that of another recipe."""
    resume = import_module("lib.resume")
    now = resume.told("fsdp/train.py", argparse.Namespace(lr=0.1))
    then = {key: value for key, value in now.items() if key != "weight_decay_on"} | older
    refusal, changed = resume._compare(Path("step-1"), then, now, resume._MUST_BE_EQUAL)
    assert refusal.startswith(
        "step-1: the weight decay of its run was also that of norms and biases; now only matrices decay."
    )
    assert "\n  try: " in refusal
    assert changed == []
    alone = resume.told("rl/trainer.py", argparse.Namespace(lr=0.1), weight_decay_on=None)
    assert resume._compare(Path("step-1"), {**alone, **older}, alone, resume._MUST_BE_EQUAL) == (None, [])


def test_groups_of_a_model_with_biases_and_head_norms() -> None:
    """Each parameter is in one group, and the group by its kind; without vectors there is no empty group."""
    loop, model = import_module("lib.loop"), import_module("lib.model")
    net = model.GPT(model.GPTShape(layers=1, heads=2, dim=8, context=4, qkv_bias=True, head_norms=True))
    names = {id(one): name for name, one in net.named_parameters()}
    matrices, vectors = loop.decay_groups(net.parameters(), 0.3)
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.3, 0.0)
    kept = {names[id(one)] for one in vectors["params"]}
    assert kept == {name for name in names.values() if "norm" in name or name.endswith("bias")}
    assert len(kept) + len(matrices["params"]) == len(names)
    assert len(loop.decay_groups(matrices["params"], 0.3)) == 1
