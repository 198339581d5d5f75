"""Every program that trains, once: two ranks, a tiny model, its own options; then it continues with others. CI runs these."""

import importlib.util
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kit.schema.metrics import SCHEMA, MetricsRecord

pytestmark = [pytest.mark.timeout(240), pytest.mark.smoke]
GPT = ("--layers", 2, "--dim", 32, "--heads", 2, "--context", 32, "--batch-size", 8, "--warmup", 2, "--log-every", 1)
# Fewer test windows than a micro-batch of each rank.
STEPS = ("--steps", 4, "--test-windows", 3, "--eval-every", 2)
POLICY = ("--layers", 1, "--seq-len", 24, "--dim", 32, "--test-rollouts", 1, "--log-every", 1)
ZERO3 = {
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "zero_force_ds_cpu_optimizer": False,
    "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}},
}
SLOWER = ("--lr", 0.001)


class Case(NamedTuple):
    """A program, the module that it needs, its first options, and those that it continues with."""

    program: str
    needs: str
    first: tuple[object, ...]
    then: tuple[object, ...]
    resumed: int = 4


CASES = {
    "ddp-images": Case(
        "ddp/train.py",
        "sklearn",
        (
            "--epochs",
            1,
            "--width",
            4,
            "--batch-size",
            128,
            "--log-every",
            1,
            "--checkpoint-async",
            "--checkpoint-every",
            3,
        ),
        (
            "--epochs",
            2,
            "--accumulate",
            2,
            "--precision",
            "bf16",
            "--workers",
            1,
            "--clip",
            0,
            "--weight-decay",
            0.1,
            "--optimizer",
            "adamw",
        ),
        11,
    ),
    "ddp": Case(
        "ddp/train_gpt.py",
        "numpy",
        (*GPT, *STEPS, "--accumulate", 2, "--checkpoint-async", "--checkpoint-every", 2, "--workers", 1),
        ("--steps", 6, "--precision", "bf16", "--clip", 0, "--profile-steps", "6", "--profile-ranks", "1"),
    ),
    "fsdp": Case(
        "fsdp/train.py",
        "numpy",
        (*GPT, *STEPS, "--checkpoint-async", "--checkpoint-every", 2, "--keep-gathered"),
        ("--steps", 6, "--precision", "bf16", "--cpu-offload", "--recompute", "--replicate", 2),
    ),
    "deepspeed": Case(
        "deepspeed/train.py",
        "deepspeed",
        (*GPT[:8], *GPT[10:], *STEPS, "--ds-config", "zero3.json", "--checkpoint-async", "--checkpoint-every", 2),
        ("--steps", 6),
    ),
    "megatron-tp": Case(
        "megatron/train.py",
        "megatron",
        (*GPT, *STEPS, "--tp", 2, "--kv-heads", 2, "--checkpoint-async", "--checkpoint-every", 2),
        ("--steps", 6, "--tp", 1, "--pp", 2, "--accumulate", 2),
    ),
    "megatron-dp": Case(
        "megatron/train.py",
        "megatron",
        (*GPT, *STEPS, "--distributed-optimizer", "--precision", "bf16"),
        ("--steps", 6),
    ),
    "diloco": Case(
        "diloco/train.py",
        "torchft",
        (*GPT, *STEPS, "--sync-every", 2, "--fragments", 2, "--bits", 4, "--accumulate", 2, "--checkpoint-async"),
        (
            "--steps",
            8,
            "--bits",
            32,
            "--top-k",
            0.1,
            "--sync-every",
            4,
            "--overlap",
            1,
            "--alpha",
            0.4,
            "--checkpoint-keep",
            1,
        ),
    ),
    "muloco": Case(
        "diloco/train.py",
        "torchft",
        (*GPT, *STEPS, "--sync-every", 2, "--inner", "muon", "--inside", "fsdp", "--beta2", 0.99, "--bits", 8),
        (
            "--steps",
            6,
            "--precision",
            "bf16",
            "--outer-lr",
            1,
            "--outer-momentum",
            0,
            "--min-replicas",
            1,
            "--start-wait",
            1,
        ),
    ),
    "sft": Case(
        "sft/train.py",
        "torch",
        ("--max-steps", 4, *POLICY, "--checkpoint-async", "--checkpoint-every", 2),
        ("--max-steps", 6, "--weight-decay", 0.2, "--dp-replicate", 1, "--temperature", 0.9),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_trains_and_goes_on_with_other_options(name: str, training: Any, tools: Any) -> None:
    case = CASES[name]
    pytest.importorskip(case.needs, reason=f"{case.needs} is not installed (make training)")
    (training.folder / "zero3.json").write_text(json.dumps(ZERO3))
    paths = {"zero3.json": training.folder / "zero3.json"}
    first = tuple(paths.get(str(option), option) for option in case.first)
    run = training.run(case.program, "run", *first)
    folder = run.run_dir / ("replica-0" if case.needs == "torchft" else "")
    (final,) = tools.records(folder, "final")
    assert 0 < final.get("test_loss", 1.0) < 6, "of bytes, by a model that knows next to nothing"
    losses = [record["loss"] for record in tools.records(folder, "step")]
    assert losses
    assert all(map(math.isfinite, losses))
    (start,) = tools.records(folder, "start")
    assert (start["schema"], start["program"]) == (SCHEMA, case.program)
    if "--eval-every" in case.first:
        check_validations(folder, tools, run.run_dir / "checkpoints" / folder.relative_to(run.run_dir))

    training.run(case.program, "run", *first, *case.then, *SLOWER)
    (resumed,) = tools.records(folder, "resumed")
    assert resumed["step"] == case.resumed
    (changed,) = tools.records(folder, "changed")
    assert any("--lr" in what and what.endswith("-> 0.001") for what in changed["changed"])
    assert not any("checkpoint" in what or "log" in what or "eval" in what for what in changed["changed"])
    for record in tools.records(folder):
        MetricsRecord.model_validate(record)
    if case.program != "ddp/train.py":
        (model,) = {path.read_text() for path in run.run_dir.rglob("model.json")}
        assert json.loads(model)["layers"] == (1 if name == "sft" else 2)


def check_validations(folder: Path, tools: Any, checkpoints: Path) -> None:
    """Every second step; the last is that of the final test; the checkpoint of the least loss records it."""
    evaluations = tools.records(folder, "eval")
    assert [record["step"] for record in evaluations] == [2, 4]
    (final,) = tools.records(folder, "final")
    if final.get("flushed", 1) == 1:  # DiLoCo's fragments are averaged once more at the end
        assert evaluations[-1]["eval_loss"] == final["test_loss"]
    least = min(evaluations, key=lambda record: float(record["eval_loss"]))
    assert least["best"]
    best = json.loads((checkpoints / (checkpoints / "best").read_text().strip() / "complete.json").read_text())
    assert best["eval_loss"] == least["eval_loss"]


def test_another_programs_checkpoint_is_refused_in_one_sentence(training: Any) -> None:
    """FSDP on DDP's folder said `AssertionError: metadata is None`."""
    training.run("ddp/train_gpt.py", "run", *GPT, *STEPS, shape="single")
    run = training.start("fsdp/train.py", "run", *GPT, *STEPS, shape="single", forked=True)
    assert run.wait() == [1]
    assert "written by ddp/train_gpt.py; fsdp/train.py cannot read it" in run.output()
    assert "Traceback" not in run.output()


def test_the_test_loss_does_not_depend_on_the_layout(training: Any, tools: Any) -> None:
    """After no step at all, so that the weights are equal to the last bit: only rounding differs."""
    losses = []
    for number, (program, ranks, options) in enumerate(
        [
            ("ddp/train_gpt.py", 1, ("--accumulate", 2)),
            ("ddp/train_gpt.py", 2, ()),
            ("fsdp/train.py", 2, ("--accumulate", 4)),
        ]
    ):
        run = training.run(program, str(number), *GPT, "--steps", 0, "--test-windows", 21, *options, ranks=ranks)
        losses.append(tools.records(run.run_dir, "final")[0]["test_loss"])
    assert losses == pytest.approx([losses[0]] * 3, abs=1e-5)


def test_a_rank_of_fsdp_builds_its_shard_and_one_block_at_most(training: Any, tools: Any) -> None:
    """A model of 100 million weights, 400 MB, on four ranks: each built it whole once, before it cut it."""
    layers, dim, ranks = 6, 1024, 4
    shape = ("--layers", layers, "--dim", dim, "--heads", 16, "--context", 8, "--batch-size", ranks)
    run = training.start("fsdp/train.py", "run", *shape, ranks=ranks)
    run.until(lambda: tools.records(run.run_dir, "start"))
    run.kill()
    (start,) = tools.records(run.run_dir, "start")
    assert start["parameters"] == 16 * layers * dim**2 + (2 * layers + 1) * dim + 2 * 256 * dim
    shard, block = 4 * start["parameters"] / ranks, 4 * 16 * dim**2
    assert start["built_bytes"] < shard + block < 4 * start["parameters"] / 2


def test_rl_runs_its_three_programs(training: Any, tools: Any, free_port: Callable[[], int]) -> None:
    """Two servers, weights by a collective."""
    if importlib.util.find_spec("aiohttp") is None:
        pytest.skip("aiohttp is not installed (make training)")
    ports = [free_port()]
    serve = ("--host", "127.0.0.1", "--max-batch", 16, "--weights-timeout", 60, "--port")
    services = [training.start("rl/inference.py", "rl", *serve, port, shape="single") for port in ports]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    asks: tuple[object, ...] = (
        "--max-steps",
        2,
        "--batch-size",
        8,
        "--rollouts-per-example",
        4,
        "--max-async-level",
        0,
        "--seq-len",
        24,
    )
    asks += ("--max-tokens", 3, "--temperature", 0.9, "--eval-every", 1, "--eval-rollouts", 1)
    services.append(training.start("rl/orchestrator.py", "rl", "--servers", *urls, *asks, shape="single"))
    options: tuple[object, ...] = (
        "--max-steps",
        2,
        "--form-steps",
        2,
        "--inference-servers",
        len(ports),
        "--weight-broadcast",
        "nccl",
    )
    options += (
        "--temperature",
        0.9,
        "--entropy",
        0.01,
        "--clip-ratio",
        0.3,
        "--batch-timeout",
        60,
        "--broadcast-timeout",
        60,
    )
    options += ("--broadcast-port", free_port())
    training.run("rl/trainer.py", "rl", *POLICY, *options, "--updates", 2, ranks=2)
    assert [record["step"] for record in tools.records(training.folder / "rl", "step")] == [1, 2]
    assert list((training.folder / "rl" / "checkpoints").rglob("model.json"))
    for service in services:
        service.processes[0].terminate()
        assert service.wait(30) == [0], service.output()


def test_every_option_of_every_program_is_in_these_tests() -> None:
    """An option that no test gives is one that nobody has tried (F1)."""
    # Ray is in no image of these tests.
    files = [*Path(__file__).parent.glob("test_*.py"), Path(__file__).parents[1] / "unit" / "test_ray.py"]
    tested = "".join(path.read_text(encoding="utf-8") for path in files)
    untried = {option for path in LAUNCHERS.glob("*/*.py") for option in options_of(path)} - UNTRIED
    assert sorted(option for option in untried if f'"{option}"' not in tested) == []


LAUNCHERS = Path(__file__).parents[2] / "launchers"
# Of a GPU, of a compiler, or of a wait that no test should have.
UNTRIED = {"--transformer-engine", "--cp", "--sequence-parallel", "--compile", "--wire", "--json-lines"}
# Where the tests give a variable that the kit sets, as a job does: KIT_SEED, KIT_RUN_DIR and so on.
UNTRIED |= {"--seed", "--run-dir", "--checkpoint-dir", "--norm-eps", "--rope-base"}


def options_of(path: Path) -> list[str]:
    """The options that a program adds to its parser."""
    import re

    return re.findall(r"add_argument\(\s*\"(--[a-z0-9-]+)\"", path.read_text(encoding="utf-8"))
