"""Options of launchers/sft and launchers/rl for large models: micro-batches without communication, bf16, activations again."""

import json
import random
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(300)
SMALL = ("--layers", 2, "--dim", 32, "--log-every", 1, "--profile-steps", "2")
VALUES = ("loss", "gradient_norm")


def exchanges(run: Any, kind: str) -> int:
    """The collectives of this kind that rank 0 began in the profiled step."""
    trace = json.loads((run.run_dir / "profile" / "rank-0.json").read_text())
    return sum(event.get("name") == kind for event in trace["traceEvents"])


# ---- sft ----


@pytest.mark.parametrize(
    ("layout", "kind"), [((), "c10d::allreduce_"), (("--dp-replicate", 1), "c10d::_reduce_scatter_base_")]
)
def test_the_micro_steps_of_sft_exchange_gradients_once(
    layout: tuple[object, ...], kind: str, training: Any, tools: Any
) -> None:
    """Four micro-steps exchanged them four times. Activations that are computed again change no loss."""
    words = (*SMALL, "--max-steps", 3, "--batch-size", 16, "--test-rollouts", 1, *layout)
    whole = training.run("sft/train.py", "whole", *words)
    parts = training.run("sft/train.py", "parts", *words, "--accumulate", 4, "--recompute")
    assert exchanges(whole, kind) >= 1
    assert exchanges(parts, kind) == exchanges(whole, kind)
    expected = tools.curve(whole.run_dir, *VALUES)
    assert len(expected) == 3
    for step, values in tools.curve(parts.run_dir, *VALUES).items():
        assert values == pytest.approx(expected[step], abs=1e-5)


@pytest.mark.parametrize("layout", [(), ("--dp-replicate", 1)], ids=["copies", "shards"])
def test_bf16_computes_in_half_and_keeps_weights_in_float32(
    layout: tuple[object, ...], training: Any, tools: Any
) -> None:
    import torch

    words = (*SMALL, "--max-steps", 3, "--batch-size", 16, "--test-rollouts", 1, *layout)
    whole = tools.curve(training.run("sft/train.py", "whole", *words).run_dir, "loss")
    half = training.run("sft/train.py", "half", *words, "--precision", "bf16", "--accumulate", 2)
    curve = tools.curve(half.run_dir, "loss")
    assert curve != whole
    for step, (loss,) in curve.items():
        assert loss == pytest.approx(whole[step][0], abs=0.03)
    saved = torch.load(half.run_dir / "checkpoints" / "step-00000003" / "state.pt", weights_only=True)
    assert {tensor.dtype for tensor in saved["model"].values()} == {torch.float32}
    assert tools.records(half.run_dir, "start")[0]["precision"] == "bf16"


# ---- rl ----


def rollouts(count: int, draw: random.Random) -> list[dict[str, Any]]:
    """What the orchestrator writes: answers of one to six tokens, some of whose log-probabilities are beyond the clip."""
    made = []
    for _ in range(count):
        tokens = [draw.randrange(48, 58) for _ in range(draw.randrange(1, 7))]
        logprobs = [draw.uniform(-5.9, -5.2) for _ in tokens]
        more = {"reward": draw.random(), "advantage": draw.uniform(-1, 1), "version": 0}
        made.append({"prompt": [49, 43, 50, 61], "tokens": tokens, "logprobs": logprobs, **more})
    return made


def trained(name: str, training: Any, *options: object) -> Any:
    """The trainer on two ranks, with batches that this test writes in the orchestrator's place."""
    words = (*SMALL, "--max-steps", 3, "--form-steps", 0, "--updates", 2, "--test-rollouts", 1)
    started = training.start("rl/trainer.py", name, *words, "--inference-servers", 0, *options)
    announced = started.run_dir / "broadcast" / "latest.json"
    started.until(announced.exists)
    folder = started.run_dir / "rollouts" / json.loads(announced.read_text())["start"]
    folder.mkdir(parents=True)
    draw = random.Random(5)
    for step in range(1, 4):
        # 17: two updates with 9 and 8 rollouts, so a rank has 5 or 4 of them.
        new = folder / f".step-{step}"
        new.write_text(json.dumps({"rollouts": rollouts(17, draw)}))
        new.rename(folder / f"step-{step:08d}.json")
    assert started.wait() == [0, 0], started.output()
    return started


def test_micro_batches_of_rl_change_no_number_and_exchange_gradients_once(training: Any, tools: Any) -> None:
    """On copies and on shards, also where a rank has a rollout fewer than another and so nothing for a turn."""
    whole = trained("whole", training)
    expected = tools.curve(whole.run_dir, *VALUES, "clipped")
    assert len(expected) == 3
    assert all(clipped > 0 for _, _, clipped in expected.values())
    for name, options in {"three": (3,), "one": (1,), "shards": (1, "--dp-replicate", 1, "--recompute")}.items():
        parts = trained(name, training, "--micro-batch", *options)
        found = tools.curve(parts.run_dir, *VALUES, "clipped")
        for step, values in expected.items():
            assert found[step] == pytest.approx(values, abs=1e-5), (name, step)
        if name == "shards":
            # Two updates, and the units of two blocks and the rest.
            assert exchanges(parts, "c10d::_reduce_scatter_base_") == 2 * 3
        else:
            assert exchanges(parts, "c10d::allreduce_") == exchanges(whole, "c10d::allreduce_")


def test_micro_batches_of_less_than_none_are_refused(training: Any) -> None:
    run = training.start("rl/trainer.py", "run", "--micro-batch", -1, shape="single")
    assert run.wait() == [2]
    assert "--micro-batch -1: rollouts of one forward pass, 0 or more" in run.output()
