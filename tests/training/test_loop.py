"""Parts that the training programs share, each without other processes: data, test, resume, positions, speed."""

import argparse
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
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
        "ddp_local_rank": 0,
        "nodes": 1,
        "device": torch.device("cpu"),
        "backend": "gloo",
        "control": None,
    }
    return ranks.Ranks(ddp_rank=number, ddp_world_size=count, **alone)


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

    def total(*values: float, world: object) -> list[float]:
        sums.append(list(values))
        return [1.0, 1.0]

    monkeypatch.setattr(ranks, "total", total)
    net = torch.nn.Embedding.from_pretrained(logits)
    for number in range(world):
        loop.test_loss(net, windows(2), 256, 4, rank(number, world))
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

    refusal, _ = resume._compare(Path("step-1"), told(), told(**now), resume._MUST_BE_EQUAL)
    assert words in str(refusal)
    assert "try: " in str(refusal)


def test_what_may_differ_is_named() -> None:
    from lib import resume

    judged = resume._compare(Path("step-1"), told(), told(lr=0.2, run_dir=Path("b")), resume._MUST_BE_EQUAL)
    assert judged == (None, ["--lr 0.1 -> 0.2"])
    assert resume._compare(Path("step-1"), told(), told(), resume._MUST_BE_EQUAL) == (None, [])
    unnamed = {"step": 1, "files": {}, "order": told()["order"], "weight_decay_on": "matrices"}
    assert resume._compare(Path("step-1"), unnamed, told(), resume._MUST_BE_EQUAL) == (None, [])


def test_positions_stay_in_float32_in_a_model_of_bfloat16() -> None:
    """Rounded to bfloat16, position 1000 would turn as another one does: an error of 2e-3 in the logits was seen."""
    import torch
    from lib import model

    net = model.GPT(model.GPTShape(layers=1, heads=2, dim=32, context=1024)).bfloat16()
    angles = net.angles(torch.device("cpu"))
    assert angles.cos.dtype == angles.sin.dtype == torch.float32
    x = torch.randn(1, 2, 1024, 16, generator=torch.Generator().manual_seed(0))
    exact = model.rotate(x.bfloat16().float(), angles)
    assert model.rotate(x.bfloat16(), angles).dtype == torch.bfloat16
    # Half a unit in the last place of bfloat16, relative to the size of a pair.
    assert (model.rotate(x.bfloat16(), angles).float() - exact).abs().max() < 2**-8 * exact.abs().max()


def test_blocks_are_compiled_one_by_one_and_keep_their_names() -> None:
    from lib import model

    net = model.GPT(model.GPTShape(layers=2, heads=2, dim=32, context=16))
    names = [*net.state_dict()]
    net.compile_blocks()
    assert all(block._compiled_call_impl is not None for block in net.blocks)
    assert net._compiled_call_impl is None
    assert [*net.state_dict()] == names


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989e12),
        ("NVIDIA H100 80GB HBM3", "fp16", 989e12),
        ("NVIDIA H100 80GB HBM3", "fp8", 1979e12),
        ("NVIDIA H100 80GB HBM3", "fp32", 67e12),
        ("NVIDIA H100 PCIe", "bf16", 756e12),
        ("NVIDIA H100 PCIe", "tf32", 378e12),
        ("NVIDIA H100 NVL", "bf16", 835e12),
        ("NVIDIA H200", "tf32", 494.5e12),
        ("NVIDIA H20", "bf16", 148e12),
        ("NVIDIA GH200 480GB", "bf16", 990e12),
        ("NVIDIA GB200", "bf16", 2500e12),
        ("NVIDIA B200", "bf16", 2250e12),
        ("NVIDIA B200", "fp8", 4500e12),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156e12),
        ("NVIDIA A100-SXM4-80GB", "fp32", 19.5e12),
        ("NVIDIA A100-SXM4-80GB", "fp8", None),
        ("NVIDIA A10G", "bf16", 70e12),
        ("NVIDIA A10", "bf16", 125e12),
        ("NVIDIA L40S", "bf16", 362e12),
        ("NVIDIA L4", "bf16", 121e12),
        ("Tesla V100-SXM2-16GB", "fp16", 125e12),
        ("Tesla V100-SXM2-16GB", "bf16", None),
        ("Tesla V100-SXM2-16GB", "tf32", 15.7e12),
        ("Tesla V100-SXM3-32GB", "fp16", 125e12),
        ("Tesla V100-PCIE-32GB", "fp16", 112e12),
        ("Tesla V100-PCIE-32GB", "fp32", 14e12),
        ("Tesla V100S-PCIE-32GB", "fp16", 130e12),
        ("Tesla T4", "fp16", 65e12),
        ("NVIDIA A100 80GB PCIe", "bf16", 312e12),
        ("NVIDIA A100-PCIE-40GB", "bf16", 312e12),
        ("NVIDIA A40", "bf16", 149.7e12),
        ("NVIDIA A30", "bf16", 165e12),
        ("NVIDIA L40", "bf16", 181e12),
        ("NVIDIA H200 NVL", "bf16", 835e12),
        ("NVIDIA H200 NVL", "fp32", 60e12),
        # Others, whose names are like those of the table.
        ("Tesla V100-FHHL-16GB", "fp16", None),
        ("NVIDIA A100-SXM-64GB", "bf16", None),
        ("NVIDIA H100 64GB HBM2", "bf16", None),
        ("NVIDIA A100X", "bf16", None),
        ("NVIDIA A800-SXM4-80GB", "bf16", None),
        ("NVIDIA H800", "bf16", None),
        ("NVIDIA RTX A4000", "bf16", None),
        ("NVIDIA L20", "bf16", None),
        ("NVIDIA L40G", "bf16", None),
        ("NVIDIA T4G", "fp16", None),
        ("NVIDIA B300 SXM6 AC", "bf16", None),
        ("NVIDIA GB300", "bf16", None),
        ("Quadro GV100", "fp16", None),
        # Parts of a card.
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16", None),
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", "bf16", None),
        ("GRID A100-40C", "bf16", None),
        ("NVIDIA A100-4-20C", "bf16", None),
        ("NVIDIA L40S-48Q", "bf16", None),
        ("NVIDIA A10-24A", "bf16", None),
        ("NVIDIA RTX 1", "bf16", None),
        ("", "bf16", None),
    ],
)
def test_a_gpu_has_the_peak_of_its_own_card_and_precision(name: str, precision: str, peak: float | None) -> None:
    from lib import peaks

    assert peaks.peak_flops(name, precision) == peak


def test_the_rows_of_the_peaks_agree_with_each_other() -> None:
    """No row is hidden by one before it; the matrix units double with each halving of a number, as far as data sheets round."""
    from lib import peaks

    rows = list(peaks.PEAKS.items())
    for number, (words, peak) in enumerate(rows):
        name = " ".join(("NVIDIA", *words))
        assert peaks.peak_flops(name, "fp16") == peak.half * 1e12, words
        assert not any(set(before) <= set(words) for before, _ in rows[:number]), words
        assert peak.fp32 < 1.01 * (peak.tf32 or peak.half), words
        if peak.tf32:
            assert peak.half / peak.tf32 == pytest.approx(2, rel=0.02), words
        if peak.fp8:
            assert peak.fp8 / peak.half == pytest.approx(2, rel=0.03), words
    with pytest.raises(KeyError):
        peaks.peak_flops("NVIDIA A100-SXM4-80GB", "int3")


@pytest.mark.parametrize(("matmul", "mfu"), [("high", 1e12 / 494.5e12 / 2), ("highest", 1e12 / 67e12 / 2)])
def test_the_mfu_of_a_run_in_fp32_is_of_what_is_multiplied(
    monkeypatch: pytest.MonkeyPatch, matmul: str, mfu: float
) -> None:
    """In TF32 parts, as lib/ranks.py asks for, or in whole float32. Two ranks; 10 steps of 100 tokens in a second."""
    import torch
    from lib import metrics

    clock = iter([10.0, 11.0])
    monkeypatch.setattr(metrics, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(metrics, "largest", lambda *values, world: list(values))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100 80GB HBM3")
    for name in ("synchronize", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 1 << 30)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: matmul)
    world = SimpleNamespace(device=torch.device("cuda", 0), ddp_world_size=2)
    speed = metrics.Speed(100, 1e9, world, "fp32")
    for _ in range(10):
        speed.step()
    assert speed.values() == {"tokens_per_second": 1000.0, "memory_bytes": 1 << 30, "mfu": pytest.approx(mfu)}


def test_the_memory_of_a_program_is_its_own_and_not_its_parents() -> None:
    """getrusage(2) keeps, over fork and exec, the most that the starter had: a rank of a large process was told as large."""
    child = "import sys; sys.path[:0] = [sys.argv[1]]; from lib import metrics; print(metrics.most_resident())"
    parent = (
        "import subprocess, sys; held = b'1' * (1200 << 20);"
        "subprocess.run([sys.executable, '-c', *sys.argv[1:]], check=True); assert held"
    )
    argv = [sys.executable, "-c", parent, child, str(LAUNCHERS)]
    said = int(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
    assert 20 << 20 < said < 1100 << 20


def test_the_process_group_is_told_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three visible GPUs the local rank's, so that NCCL and barriers need not guess."""
    import torch
    import torch.distributed as dist
    from lib import ranks

    given: dict[str, Any] = {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: given.update(set_device=index))
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda kind: given.update(matmul=kind))
    monkeypatch.setattr(dist, "init_process_group", lambda *args, **more: given.update(more, args=args))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    monkeypatch.setattr(ranks, "_gather_ranks", lambda use_gpu: SimpleNamespace(use_gpu=use_gpu))
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

    parameters = [torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(2))]
    optimizer = loop.adamw(parameters, lr=0.1, weight_decay=0.3)
    saved = optimizer.state_dict()
    optimizer = loop.adamw(parameters, lr=0.2, weight_decay=0.4)
    optimizer.load_state_dict(saved)
    assert loop.set_pace(optimizer, lr=0.05, weight_decay=0.4) == 0.05
    assert [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups] == [(0.05, 0.4), (0.05, 0.0)]


def told_of(folder: Path, step: int, **more: object) -> Path:
    """A checkpoint's folder with its marker."""
    made = folder / f"step-{step:08d}"
    made.mkdir()
    (made / "complete.json").write_text(json.dumps({"step": step, "files": {}, **more}))
    return made


def test_the_best_checkpoint_is_the_one_with_the_least_loss(tmp_path: Path) -> None:
    """Of those up to the one that a run continues from; a damaged or unvalidated one is none."""
    from lib import checkpoint

    folders = [told_of(tmp_path, 2, eval_loss=3.0), told_of(tmp_path, 4), told_of(tmp_path, 6, eval_loss=1.0)]
    (told_of(tmp_path, 5) / "complete.json").write_text("{")
    assert checkpoint._least_loss(tmp_path.glob("step-*"), 6) == ("step-00000006", 1.0)
    assert checkpoint._least_loss(tmp_path.glob("step-*"), 5) == ("step-00000002", 3.0)
    assert checkpoint._least_loss(folders[1:2], 6) is None


@pytest.fixture
def alone() -> Iterator[Any]:
    """A process group of one."""
    from lib import ranks

    with ranks.started("cpu") as world:
        yield world


def test_the_best_and_the_newest_are_kept_and_the_rest_goes(alone: Any, tmp_path: Path) -> None:
    from lib import checkpoint

    def saves() -> Any:
        return checkpoint.Checkpoints(tmp_path, alone, {"program": "x", "arguments": {}}, keep=1)

    def start(folder: Path) -> None:
        (folder / "state.pt").write_bytes(b"state")

    kept, losses = saves(), {2: 3.0, 4: 2.0, 6: 2.0, 8: 2.5}
    for step, loss in losses.items():
        assert kept.is_best(step, loss) == (step in {2, 4}), "an equal loss is no better one"
        kept.save(step, start)
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-00000004", "step-00000008"]
    assert [(tmp_path / name).read_text() for name in ("best", "latest")] == ["step-00000004\n", "step-00000008\n"]

    later = saves()
    assert later.newest().name == "step-00000008"
    assert not later.is_best(10, 2.0), "the loss that the checkpoint before the newest has"
    assert later.is_best(12, 1.0)
    later.save(12, start)
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-00000012"]


def test_a_save_does_not_wait_for_the_removal_of_an_old_checkpoint(
    alone: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lib import checkpoint

    def saves() -> Any:
        return checkpoint.Checkpoints(tmp_path, alone, {"program": "x", "arguments": {}}, keep=1)

    def start(folder: Path) -> None:
        (folder / "state.pt").write_bytes(b"state")

    kept, go, remove = saves(), threading.Event(), checkpoint.shutil.rmtree
    monkeypatch.setattr(checkpoint.shutil, "rmtree", lambda *words, **more: go.wait(60) and remove(*words, **more))
    for step in (1, 2):
        kept.save(step, start)
    aside = tmp_path / ".tmp-old-step-00000001"
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-00000002"]
    assert aside.is_dir()
    go.set()
    kept._removal.join()
    assert not aside.exists()
    aside.mkdir()  # as a kill -9 leaves it
    saves()
    assert not aside.exists()


class Drawn:
    """A tracker that keeps what it is given."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.drawn: list[tuple[str, int, dict[str, float]]] = []

    def describe(self, told: dict[str, Any]) -> None:
        self.told.append(told)

    def points(self, kind: str, step: int, numbers: dict[str, float]) -> None:
        self.drawn.append((kind, step, numbers))


def test_trackers_get_curves_and_what_the_run_is(alone: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from lib import metrics, trackers

    drawn = Drawn()
    monkeypatch.setattr(trackers, "asked_for", lambda _: [drawn])
    log, speed = metrics.MetricsFile(tmp_path, alone), metrics.Speed(64, 2.0, alone, "fp32")
    log.started("ddp/train_gpt.py", alone, speed, parameters=5, seed=1)
    speed.step()
    log.step(3, 2.5, speed, alone, lr=0.1)
    log.evaluated(3, 2.25, best=True, seconds=1.0)
    log.record("stopped", "stopped", step=3, signal=15)
    assert drawn.told[0]["device"] == "cpu"
    assert [(kind, step, sorted(numbers)) for kind, step, numbers in drawn.drawn] == [
        ("step", 3, ["loss", "lr", "memory_bytes", "tokens_per_second"]),
        ("eval", 3, ["best", "eval_loss", "seconds"]),
    ]


def test_tensorboard_shows_what_counts_after_a_restart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The steps that a killed start made, and a later one made again, stand there once."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from lib import trackers

    monkeypatch.setenv("KIT_TENSORBOARD", "1")
    for steps, loss in (((1, 2, 3, 4), 9.0), ((3, 4, 5), 1.0)):
        (tracker,) = trackers.asked_for(tmp_path)
        for step in steps:
            tracker.points("step", step, {"loss": loss})
    read = accumulator.EventAccumulator(str(tmp_path / "tensorboard"), purge_orphaned_data=True)
    read.Reload()
    found = [(event.step, event.value) for event in read.Scalars("step/loss")]
    assert found == [(1, 9.0), (2, 9.0), (3, 1.0), (4, 1.0), (5, 1.0)]


def test_wandb_is_one_run_over_all_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Offline, as on a node without the internet: each start's files carry the run's id, and a group of DiLoCo its own."""
    pytest.importorskip("wandb")
    told = {"KIT_WANDB": "1", "KIT_RUN_DIR": str(tmp_path), "WANDB_RUN_ID": "gpt-1", "WANDB_MODE": "offline"}
    told |= {"WANDB_PROJECT": "p", "WANDB_DIR": str(tmp_path), "WANDB_RESUME": "allow", "WANDB_SILENT": "true"}
    code = (
        "import sys, pathlib; from lib import trackers; (one,) = trackers.asked_for(pathlib.Path(sys.argv[1]));"
        "one.describe({'program': 'x'}); one.points('step', 3, {'loss': 1.0})"
    )
    env = {**os.environ, **told, "PYTHONPATH": str(LAUNCHERS)}
    for folder in (tmp_path, tmp_path, tmp_path / "replica-1"):
        subprocess.run([sys.executable, "-c", code, str(folder)], env=env, check=True, timeout=120)
    ids = sorted(path.stem for path in (tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    assert ids == ["run-gpt-1", "run-gpt-1", "run-gpt-1-replica-1"]


@pytest.mark.parametrize("name", ["KIT_TENSORBOARD", "KIT_WANDB"])
def test_a_tracker_that_is_not_installed_ends_the_program_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    from lib import trackers

    monkeypatch.setenv(name, "1")
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(SystemExit, match=r"the package (tensorboard|wandb) is not installed"):
        trackers.asked_for(tmp_path)


@pytest.mark.parametrize(("first", "count"), [(0, 600), (0, 256), (255, 3), (300, 300), (600, 0)])
def test_the_rows_of_a_shard_are_those_of_the_whole(first: int, count: int) -> None:
    """Across bands, within one, at the end, and where a rank has none."""
    import torch
    from lib import initial

    def drawn(first: int, count: int, seed: int = 3) -> torch.Tensor:
        rows = torch.full((count, 5), torch.nan)
        initial.values(rows, "blocks.0.down.weight", first=first, rows=600, std=0.02, seed=seed)
        return rows

    whole = drawn(0, 600)
    assert torch.equal(drawn(first, count), whole[first : first + count])
    assert whole.std().item() == pytest.approx(0.02, rel=0.05)
    assert len(whole.unique()) > 2900, "no band is another's"
    assert not torch.equal(drawn(0, 600, seed=4), whole)


def test_a_model_of_the_meta_device_gets_the_weights_of_one_that_was_built() -> None:
    import torch
    from lib import initial, model

    shape = model.GPTShape(layers=2, heads=2, dim=32, context=16)
    torch.manual_seed(5)
    built = model.GPT(shape)
    with torch.device("meta"):
        net = model.GPT(shape)
    net.to_empty(device="cpu")
    initial.fill(net, net.std, seed=5)
    for (name, one), other in zip(built.state_dict().items(), net.state_dict().values(), strict=True):
        assert torch.equal(one, other), name
    assert built.norm.weight.eq(1).all()
    deep, wide = built.blocks[0].down.weight.std().item(), built.blocks[0].gate_up.weight.std().item()
    assert deep == pytest.approx(wide / 2, rel=0.1), "0.02 / sqrt(2 x layers)"


def test_only_saves_in_the_background_have_a_process_group_of_their_own(alone: Any, tmp_path: Path) -> None:
    """Each gloo group connects a rank to all others: kit/planning/open_files.py counts them."""
    import torch.distributed as dist
    from lib import checkpoint

    def groups() -> int:
        return len(dist.distributed_c10d._world.pg_map)

    assert groups() == 2, "the training's, and that of flags"
    assert checkpoint.Checkpoints(tmp_path, alone, {}, background=False).group is alone.control
    assert groups() == 2
    checkpoint.Checkpoints(tmp_path, alone, {}, background=True)
    assert groups() == 3
