"""The learning rate by step: against torch's own schedulers, and the default rate for new weights and for pretrained ones."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import REPO

pytestmark = pytest.mark.smoke


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Import as the programs do."""
    monkeypatch.syspath_prepend(str(REPO / "launchers"))


def parsed(monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    """The options of a program that starts from new weights or those of a model of Hugging Face."""
    from lib import options

    made = options.parser(None)
    made.add_argument("--model", type=Path)
    options.add_pace(made, lr=3e-3, tuned=2e-5, warmup=20)
    monkeypatch.setattr(sys, "argv", ["program", *words])
    return options.parse(made)


def by_torch(warmup: int, steps: int, floor: float, *, decay: int | None) -> list[float]:
    """The factors that torch's schedulers give. decay: of wsd; None: cosine."""
    import torch
    from torch.optim import lr_scheduler as theirs

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    up = theirs.LinearLR(optimizer, 1 / warmup, 1.0, warmup - 1)
    parts: list[Any] = [theirs.CosineAnnealingLR(optimizer, steps - warmup, floor)]
    borders = [warmup]
    if decay is not None:
        parts = [theirs.ConstantLR(optimizer, 1.0), theirs.LinearLR(optimizer, 1.0, floor, decay)]
        borders = [warmup, steps - decay]
    schedule = theirs.SequentialLR(optimizer, [up, *parts], borders)
    found = []
    for _ in range(steps):
        found.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize(("warmup", "steps", "floor"), [(20, 200, 0.0), (7, 50, 0.1), (2, 30, 1.0)])
@pytest.mark.parametrize("decay", [None, 10])
def test_factors_are_those_of_torch(warmup: int, steps: int, floor: float, decay: int | None) -> None:
    from lib import options

    mine = options.cosine(warmup, steps, floor) if decay is None else options.wsd(warmup, steps, decay, floor)
    assert [mine(step) for step in range(steps)] == pytest.approx(by_torch(warmup, steps, floor, decay=decay))
    assert max(map(mine, range(steps))) == 1, "--lr is reached"
    assert mine(steps) == pytest.approx(floor), "where the rate ends"
    assert mine(steps + 100) == pytest.approx(floor), "a run with more steps than planned stays there"


@pytest.mark.parametrize("steps", [1, 20, 21])
@pytest.mark.parametrize("warmup", [0, 1, 20, 30])
def test_a_short_run_has_a_rate(warmup: int, steps: int) -> None:
    from lib import options

    for factor in (options.cosine(warmup, steps), options.wsd(warmup, steps, 0), options.wsd(warmup, steps, steps)):
        assert all(0 <= factor(step) <= 1 for step in range(steps + 1))
        assert factor(0) == (1 / warmup if warmup else 1)


def test_options_choose_the_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    from lib import options

    args = parsed(
        monkeypatch, "--lr", "0.1", "--min-lr", "0.01", "--warmup", "10", "--schedule", "wsd", "--decay", "0.5"
    )
    factor = options.schedule(args, 100)
    assert [args.lr * factor(step) for step in (9, 10, 50, 75, 100)] == pytest.approx([0.1, 0.1, 0.1, 0.055, 0.01])
    args = parsed(monkeypatch, "--lr", "0.1", "--min-lr", "0.01", "--warmup", "10")
    factor = options.schedule(args, 110)
    assert [args.lr * factor(step) for step in (9, 10, 60, 110)] == pytest.approx([0.1, 0.1, 0.055, 0.01])
    assert options.schedule(parsed(monkeypatch, "--lr", "0"), 5)(4) >= 0, "a rate of 0 trains nothing, and is no error"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--lr", "0.1", "--min-lr", "0.2"), "--min-lr 0.2 is not between 0 and --lr 0.1"),
        (("--min-lr", "-1"), "--min-lr -1.0 is not between 0 and --lr 0.003"),
        (("--decay", "1.5"), "--decay 1.5 is not a share of the steps: 0 to 1"),
    ],
)
def test_rates_that_contradict_each_other_end_the_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(monkeypatch, *words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_pretrained_weights_have_a_default_rate_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own, hub = tmp_path / "own", tmp_path / "hub"
    own.mkdir()
    hub.mkdir()
    (hub / "config.json").write_text("{}")
    assert type(parsed(monkeypatch).lr) is float, "as told to a checkpoint"
    assert parsed(monkeypatch).lr == 3e-3
    assert parsed(monkeypatch, "--model", str(own)).lr == 3e-3, "a checkpoint of such a program"
    assert parsed(monkeypatch, "--model", str(hub)).lr == 2e-5
    assert parsed(monkeypatch, "--model", str(hub), "--lr", "0.003").lr == 3e-3, "what is given wins"
    config = tmp_path / "given.toml"
    config.write_text("lr = 0.003\n")
    assert parsed(monkeypatch, "--model", str(hub), "--config", str(config)).lr == 3e-3


@pytest.mark.parametrize("half", [None, "bfloat16"])
def test_validation_computes_in_the_trainings_precision(monkeypatch: pytest.MonkeyPatch, half: str | None) -> None:
    import torch
    from lib import loop, ranks

    seen: list[Any] = []

    net = torch.nn.Sequential(torch.nn.Embedding(1, 3), torch.nn.Linear(3, 7, bias=False))
    torch.nn.init.zeros_(net[1].weight)
    net.register_forward_hook(lambda *called: seen.append(called[2].dtype))
    monkeypatch.setattr(ranks, "total", lambda *values, world: list(values))
    world: Any = argparse.Namespace(
        ddp_rank=0, ddp_world_size=1, device=torch.device("cpu"), control=None, is_main_process=True
    )
    numbers = torch.zeros(3, 4, dtype=torch.long)
    loss = loop.test_loss(
        net, torch.utils.data.TensorDataset(numbers, numbers), 3, 2, world, getattr(torch, half) if half else None
    )
    assert set(seen) == {torch.bfloat16 if half else torch.float32}
    assert loss == pytest.approx(torch.log(torch.tensor(7.0)).item(), rel=1e-2)
