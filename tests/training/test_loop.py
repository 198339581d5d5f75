"""What the programs share, part by part and without other processes: data, test, resume, positions, speed."""

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.smoke
LAUNCHERS = Path(__file__).parents[2] / "launchers"


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Import as the programs do."""
    monkeypatch.syspath_prepend(str(LAUNCHERS))


def rank(number: int, count: int) -> Any:
    """A rank that meets nobody."""
    import torch
    from lib import ranks

    alone: dict[str, Any] = {
        "local_rank": 0,
        "nodes": 1,
        "device": torch.device("cpu"),
        "backend": "gloo",
        "control": None,
    }
    return ranks.Ranks(rank=number, world_size=count, **alone)


def windows(count: int) -> Any:
    """A data set whose window i holds the number i."""
    import torch
    from torch.utils.data import TensorDataset

    numbers = torch.arange(count)[:, None].expand(count, 4)
    return TensorDataset(numbers, numbers)


@pytest.mark.parametrize(("world", "micro_batch"), [(1, 1), (2, 4), (3, 2), (16, 8)])
def test_the_test_takes_the_same_windows_on_every_layout(world: int, micro_batch: int) -> None:
    """Each of the first 10 once, also where there are fewer of them than ranks; and as many micro-batches on each rank."""
    from lib import data

    of_ranks = [[*data.fixed(windows(30), 10, micro_batch, rank(number, world))] for number in range(world)]
    assert len({len(batches) for batches in of_ranks}) == 1
    seen = [
        (int(window[0]), float(weight))
        for batches in of_ranks
        for tokens, _, weights in batches
        for window, weight in zip(tokens, weights, strict=True)
    ]
    assert sorted(number for number, weight in seen if weight) == list(range(10))
    assert {weight for _, weight in seen} <= {0.0, 1.0}


def test_a_test_of_no_window_is_refused() -> None:
    from lib import data

    with pytest.raises(SystemExit, match="--test-windows 0"):
        next(data.fixed(windows(30), 0, 4, rank(0, 1)))


@pytest.mark.parametrize("world", [1, 2, 3])
def test_the_test_loss_of_few_windows_is_their_mean(monkeypatch: pytest.MonkeyPatch, world: int) -> None:
    """Two windows on three ranks: it was 0.0 once, which would win a sweep."""
    import torch
    from lib import loop, ranks

    logits = torch.randn(256, 256, generator=torch.Generator().manual_seed(0))
    whole = sum(float(torch.nn.functional.cross_entropy(logits[n : n + 1], torch.tensor([n]))) for n in (0, 1)) / 2
    sums: list[list[float]] = []

    def total(*values: float, here: object) -> list[float]:
        sums.append(list(values))
        return [1.0, 1.0]

    monkeypatch.setattr(ranks, "total", total)
    for number in range(world):
        loop.test_loss(lambda tokens: logits[tokens], windows(2), 256, 4, rank(number, world))
    assert sum(count for _, count in sums) == 2
    assert sum(loss for loss, _ in sums) / 2 == pytest.approx(whole, abs=1e-6)


def test_the_samples_of_a_step_do_not_depend_on_ranks_and_accumulation() -> None:
    """Over three epochs of a data set that no batch divides."""
    from lib import data

    def steps(world: int, accumulate: int, count: int = 9, samples: int = 0) -> list[set[int]]:
        micro_batch = 8 // world // accumulate
        streams = [
            data.batches(windows(29), micro_batch, rank(number, world), seed=3, samples=samples, accumulate=accumulate)
            for number in range(world)
        ]
        return [
            {int(row[0]) for stream in streams for _ in range(accumulate) for row in next(stream)[0]}
            for _ in range(count)
        ]

    whole = steps(1, 1)
    assert all(len(samples) == 8 for samples in whole)
    assert steps(1, 4) == steps(2, 2) == steps(4, 1) == whole
    assert steps(2, 2, count=5, samples=8 * 4) == whole[4:]


def told(program: str = "fsdp/train.py", **options: object) -> dict[str, Any]:
    from lib import resume

    usual = {"lr": 0.1, "seed": 1, "dim": 64, "batch_size": 8, "run_dir": Path("a"), "clip": float("inf")}
    settings: dict[str, Any] = resume.told(program, argparse.Namespace(**{**usual, **options}), data="3 files")
    return settings


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ({"program": "ddp/train_gpt.py"}, "written by fsdp/train.py; ddp/train_gpt.py cannot read it"),
        ({"dim": 128}, "--dim is 128, and the checkpoint's is 64"),
        ({"seed": 2}, "--seed is 2, and the checkpoint's is 1"),
    ],
)
def test_what_a_checkpoint_cannot_be_continued_with_is_refused(now: dict[str, Any], words: str) -> None:
    from lib import resume

    refusal, _ = resume._judged(Path("step-1"), told(), told(**now), resume._EQUAL)
    assert words in str(refusal)
    assert "try: " in str(refusal)


def test_what_may_differ_is_named() -> None:
    from lib import resume

    judged = resume._judged(Path("step-1"), told(), told(lr=0.2, run_dir=Path("b")), resume._EQUAL)
    assert judged == (None, ["--lr 0.1 -> 0.2"])
    assert resume._judged(Path("step-1"), told(), told(), resume._EQUAL) == (None, [])
    assert resume._judged(Path("step-1"), {"step": 1, "files": {}}, told(), resume._EQUAL) == (None, [])


def test_other_data_is_told_by_names_and_sizes(tmp_path: Path) -> None:
    from lib import data

    (tmp_path / "a.txt").write_text("one")
    before = data.text_told(tmp_path)
    assert before.startswith("1 files of 3 bytes")
    (tmp_path / "a.txt").rename(tmp_path / "b.txt")
    assert data.text_told(tmp_path) != before


def test_positions_stay_in_float32_in_a_model_of_bfloat16() -> None:
    """Rounded to bfloat16, position 1000 would turn as another one does: an error of 2e-3 in the logits was seen."""
    import torch
    from lib import model

    net = model.GPT(model.Shape(layers=1, heads=2, dim=32, context=1024)).bfloat16()
    angles = net.angles(torch.device("cpu"))
    assert angles.cos.dtype == angles.sin.dtype == torch.float32
    x = torch.randn(1, 2, 1024, 16, generator=torch.Generator().manual_seed(0))
    exact = model.rotate(x.bfloat16().float(), angles)
    assert model.rotate(x.bfloat16(), angles).dtype == torch.bfloat16
    # Half a unit in the last place of bfloat16, relative to the size of a pair.
    assert (model.rotate(x.bfloat16(), angles).float() - exact).abs().max() < 2**-8 * exact.abs().max()


def test_blocks_are_compiled_one_by_one_and_keep_their_names() -> None:
    from lib import model

    net = model.GPT(model.Shape(layers=2, heads=2, dim=32, context=16))
    names = [*net.state_dict()]
    net.compile_blocks()
    assert all(block._compiled_call_impl is not None for block in net.blocks)
    assert net._compiled_call_impl is None
    assert [*net.state_dict()] == names


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989e12),
        ("NVIDIA H100 PCIe", "bf16", 756e12),
        ("NVIDIA H200", "fp32", 494.5e12),
        ("NVIDIA GB200", "bf16", 2500e12),
        ("NVIDIA B200", "bf16", 2250e12),
        ("NVIDIA A100-SXM4-80GB", "fp32", 156e12),
        ("NVIDIA A10G", "bf16", 70e12),
        ("NVIDIA A10", "bf16", 125e12),
        ("NVIDIA L40S", "bf16", 362e12),
        ("NVIDIA RTX 1", "bf16", None),
        ("", "bf16", None),
    ],
)
def test_a_gpu_has_the_peak_of_its_own_card_and_precision(name: str, precision: str, peak: float | None) -> None:
    from lib import metrics

    assert metrics.peak_flops(name, precision) == peak


def test_the_process_group_is_told_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three visible GPUs the local rank's, so that NCCL and barriers need not guess."""
    import torch
    import torch.distributed as dist
    from lib import ranks

    given: dict[str, Any] = {}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: given.update(set_device=index))
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda kind: given.update(matmul=kind))
    monkeypatch.setattr(dist, "init_process_group", lambda *args, **more: given.update(more, args=args))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    monkeypatch.setattr(ranks, "_look_around", lambda use_gpu: SimpleNamespace(use_gpu=use_gpu))
    for name, value in {"RANK": "5", "LOCAL_RANK": "2"}.items():
        monkeypatch.setenv(name, value)
    with ranks.started("cuda"):
        pass
    assert given == {
        "set_device": 2,
        "matmul": "high",
        "args": ("cpu:gloo,cuda:nccl",),
        "device_id": torch.device("cuda", 2),
    }


def test_the_learning_rate_of_a_resumed_optimizer_is_that_of_the_options() -> None:
    import torch
    from lib import loop

    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = loop.adamw([parameter], lr=0.1, weight_decay=0.3)
    saved = optimizer.state_dict()
    optimizer = loop.adamw([parameter], lr=0.2, weight_decay=0.4)
    optimizer.load_state_dict(saved)
    assert loop.set_pace(optimizer, lr=0.05, weight_decay=0.4) == 0.05
    assert {(group["lr"], group["weight_decay"]) for group in optimizer.param_groups} == {(0.05, 0.4)}
