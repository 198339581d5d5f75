"""Chats packed into common rows: each token sees what it sees in a row of its own, and the loss is the same."""

import importlib
import json
import random
from pathlib import Path
from typing import Any

import pytest

LAUNCHERS = Path(__file__).parents[2] / "launchers"
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(autouse=True)
def _lib_of_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(LAUNCHERS))


def lib(name: str) -> Any:
    return importlib.import_module(f"lib.{name}")


def drawn(count: int) -> list[Any]:
    draw = random.Random(3)
    lengths = [draw.randrange(2, 33) for _ in range(count)]
    # The first token may count: in a row of its own it is never a target, and so it is not one after another chat.
    return [
        lib("chats").TokenRow(
            tokens=[draw.randrange(1, 64) for _ in range(n)], mask=[draw.randrange(2) for _ in range(n)]
        )
        for n in lengths
    ]


@pytest.mark.smoke
def test_packed_chats_have_the_loss_of_each_token_in_a_row_of_its_own() -> None:
    import torch

    model, policy, here = lib("model"), lib("policy"), torch.device("cpu")
    torch.manual_seed(3)
    net = model.GPT(model.GPTShape(layers=2, heads=2, dim=16, context=32, vocabulary=64)).double()
    rows = drawn(24)

    def counted(batch: Any) -> list[tuple[int, float]]:
        """Target and log-probability of each token that the loss counts."""
        with torch.no_grad():
            values = policy.logprobs(net(batch.tokens, documents=batch.documents), batch)
        where = batch.mask.bool()
        return sorted(zip(batch.targets[where].tolist(), values[where].tolist(), strict=True))

    alone = sorted(one for row in rows for one in counted(policy.rows([row], here)))
    batch = policy.packed(rows, here, most=32)
    found = counted(batch)
    assert [target for target, _ in found] == [target for target, _ in alone]
    assert [value for _, value in found] == pytest.approx([value for _, value in alone], abs=1e-6)
    assert batch.tokens.shape[1] <= 32
    # Four in five places hold a token. In rows of their own, about half do.
    used = sum(len(row.tokens) - 1 for row in rows)
    assert used > 0.8 * batch.tokens.numel()
    assert used < 0.6 * policy.rows(rows, here).tokens.numel()


def test_packed_chats_are_learned_with_the_same_curve(training: Any, tools: Any, tmp_path: Path) -> None:
    """On replicas and on shards."""
    draw, path = random.Random(1), tmp_path / "chats.jsonl"
    lines = []
    for number in range(60):
        question = {"role": "user", "content": f"{number} " + "a" * draw.randrange(1, 20)}
        answer = {"role": "assistant", "content": "b" * draw.randrange(1, 9)}
        lines.append({"messages": [question, answer]})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ("--layers", 2, "--dim", 32, "--seq-len", 96, "--log-every", 1, "--data", path, "--max-steps", 3)
    curves = {}
    for name, options in {"rows": (), "packed": ("--pack",), "shards": ("--pack", "--dp-replicate", 1)}.items():
        run = training.run("sft/train.py", name, *words, "--batch-size", 12, "--accumulate", 2, *options)
        curves[name] = tools.curve(run.run_dir, "loss", "gradient_norm", "tokens")
    assert len(curves["rows"]) == 3
    for name in ("packed", "shards"):
        for step, values in curves[name].items():
            assert values == pytest.approx(curves["rows"][step], abs=1e-5), (name, step)
