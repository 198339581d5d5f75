"""The GPT programs on gloo: the loss falls, and a run that was stopped or killed ends as if it never had been."""

import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

pytestmark = pytest.mark.timeout(240)
LAUNCHERS = Path(__file__).parents[2] / "launchers"
SMALL = ("--layers", 2, "--dim", 64, "--context", 64, "--steps", 30, "--log-every", 1, "--checkpoint-every", 5)
VALUES = ("loss", "gradient_norm", "lr")
ZERO3 = {
    "train_batch_size": 32,
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_force_ds_cpu_optimizer": False,
    "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}},
}


class Case(NamedTuple):
    name: str
    program: str
    options: tuple[object, ...]


CASES = [
    Case("ddp", "ddp/train_gpt.py", ("--accumulate", 2, "--checkpoint-async")),
    Case("fsdp", "fsdp/train.py", ("--checkpoint-async",)),
    Case("fsdp-bf16-offload-recompute", "fsdp/train.py", ("--precision", "bf16", "--cpu-offload", "--recompute")),
    Case("deepspeed-zero2", "deepspeed/train.py", ("--checkpoint-async",)),
    Case("deepspeed-zero3-offload-bf16", "deepspeed/train.py", ("--ds-config", "zero3.json")),
    Case("megatron-tp2", "megatron/train.py", ("--tp", 2, "--kv-heads", 2)),
    Case("megatron-pp2", "megatron/train.py", ("--pp", 2, "--accumulate", 2, "--checkpoint-async")),
    Case("megatron-distributed-optimizer", "megatron/train.py", ("--distributed-optimizer", "--checkpoint-async")),
]


def need(program: str) -> None:
    """Skip where the framework of a program is not installed."""
    for folder, module, package in (("deepspeed", "deepspeed", "deepspeed"), ("megatron", "megatron", "megatron-core")):
        if program.startswith(folder) and importlib.util.find_spec(module) is None:
            pytest.skip(f"{package} is not installed (make training)")


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A program and its options, with the configuration file in place."""
    case: Case = request.param
    need(case.program)
    path = tmp_path_factory.mktemp("config") / "zero3.json"
    path.write_text(json.dumps(ZERO3))
    return case._replace(options=SMALL + tuple(path if option == "zero3.json" else option for option in case.options))


@pytest.fixture(scope="module")
def whole(case: Case, module_training: Any, tools: Any) -> Any:
    """The records of the run that nobody stopped."""
    run_dir = module_training.run(case.program, case.name, *case.options).run_dir
    return tools.curve(run_dir, *VALUES), tools.records(run_dir, "final")[0]["test_loss"]


def test_loss_falls(whole: Any) -> None:
    curve, test_loss = whole
    assert list(curve) == list(range(1, 31))
    assert curve[1][0] == pytest.approx(5.55, abs=0.15), "the logarithm of 256, for a model that knows nothing"
    assert curve[30][0] < 4.0
    assert test_loss < 4.0


@pytest.mark.parametrize("way", ["usr1", "kill"])
def test_a_resumed_run_is_the_same(case: Case, whole: Any, training: Any, tools: Any, way: str) -> None:
    first = training.start(case.program, "run", *case.options)
    first.until_step(random.Random(case.name + way).randrange(7, 20))
    victim = first.processes[1]
    victim.send_signal(signal.SIGUSR1 if way == "usr1" else signal.SIGKILL)
    codes = first.wait()
    if way == "usr1":
        assert codes == [128 + signal.SIGUSR1] * 2, first.output()
        expected = json.loads((first.run_dir / "state" / "stopped.json").read_text())["step"]
    else:
        assert codes[0] != 0
        expected = None
    second = training.run(case.program, "run", *case.options)
    resumed = tools.records(second.run_dir, "resumed")[0]["step"]
    assert resumed == expected if expected else resumed >= 5
    assert tools.curve(second.run_dir, *VALUES) == whole[0]
    assert tools.records(second.run_dir, "final")[0]["test_loss"] == whole[1]


@pytest.mark.parametrize(
    ("program", "layout"), [("fsdp/train.py", ()), ("deepspeed/train.py", ()), ("megatron/train.py", ("--tp", 2))]
)
def test_a_rank_that_cannot_write_ends_all(training: Any, program: str, layout: tuple[object, ...]) -> None:
    """In the background too: no rank waits for it, and nothing that looks like a checkpoint is left."""
    need(program)
    run = training.start(program, "run", *SMALL, *layout, "--checkpoint-async", largest_file=100_000)
    assert set(run.wait()) == {1}
    assert "checkpoint step-00000005 was not saved: rank" in run.output()
    assert [path.name for path in (run.run_dir / "checkpoints").iterdir()] == [".tmp-step-00000005"]


def test_fsdp_goes_on_with_another_number_of_ranks(training: Any, tools: Any) -> None:
    options = (*SMALL[:-4], "--checkpoint-every", 10, "--log-every", 1)
    before = tools.curve(training.run("fsdp/train.py", "run", *options, ranks=2).run_dir, "loss")
    checkpoints = training.folder / "run" / "checkpoints"
    for later in ("step-00000020", "step-00000030"):
        (checkpoints / later).rename(checkpoints / f"not-{later}")
    after = training.run("fsdp/train.py", "run", *options, "--replicate", 2, ranks=4)
    assert tools.records(after.run_dir, "resumed")[-1]["step"] == 10
    curve = tools.curve(after.run_dir, "loss")
    # The data continues at the same place in the same order, so only rounding differs.
    assert curve[30] == pytest.approx(before[30], abs=0.02)


def test_fsdp_gathers_once_a_step_where_it_may_keep_the_weights(training: Any, tools: Any) -> None:
    """The same losses to the last bit, and the blocks' gathers for the backward pass are gone."""
    options = (*SMALL, "--steps", 4, "--profile-steps", "3")
    runs = [
        training.run("fsdp/train.py", "resharded", *options),
        training.run("fsdp/train.py", "kept", *options, "--keep-gathered"),
    ]
    first, second = (tools.curve(run.run_dir, *VALUES) for run in runs)
    assert first == second
    found = [gathers(run.run_dir / "profile" / "rank-0.json") for run in runs]
    assert found == [2 + 1 + 2, 2 + 1], "the blocks and what is around them, and again the blocks"


def gathers(trace: Path) -> int:
    """All-gathers of a step."""
    events = json.loads(trace.read_text())["traceEvents"]
    return sum(event.get("name") == "c10d::_allgather_base_" for event in events)


def test_zero_checkpoints_of_another_number_of_ranks_are_refused(training: Any) -> None:
    need("deepspeed/train.py")
    options = (*SMALL, "--steps", 2)
    training.run("deepspeed/train.py", "run", *options, shape="single")
    run = training.start("deepspeed/train.py", "run", *options)
    assert set(run.wait()) == {1}
    assert "was written by 1 ranks and cannot be read by 2" in run.output()


@pytest.mark.parametrize(
    ("before", "after"),
    [((), ("--tp", 2, "--pp", 2)), (("--distributed-optimizer",), ("--distributed-optimizer",))],
    ids=["tp2-pp2", "distributed-optimizer-dp4"],
)
def test_megatron_goes_on_in_another_layout(training: Any, tools: Any, before: Any, after: Any) -> None:
    need("megatron/train.py")
    options = (*SMALL[:-4], "--checkpoint-every", 10, "--log-every", 1)
    whole = tools.curve(training.run("megatron/train.py", "run", *options, *before, ranks=2).run_dir, "loss")
    checkpoints = training.folder / "run" / "checkpoints"
    assert {"common.pt", "metadata.json", "__0_0.distcp"} <= {
        path.name for path in (checkpoints / "step-00000010").iterdir()
    }
    for later in ("step-00000020", "step-00000030"):
        (checkpoints / later).rename(checkpoints / f"not-{later}")
    second = training.run("megatron/train.py", "run", *options, *after, ranks=4)
    assert tools.records(second.run_dir, "resumed")[-1]["step"] == 10
    assert tools.curve(second.run_dir, "loss")[30] == pytest.approx(whole[30], abs=0.02)


def options_of(program: str, *argv: str) -> subprocess.CompletedProcess[str]:
    """What a program makes of its command line, as JSON; it is not run."""
    folder, name = program.split("/")
    code = f"import json, sys; import {name[:-3]} as it; print(json.dumps(vars(it.args), default=str))"
    env = {**os.environ, "PYTHONPATH": f"{LAUNCHERS}:{LAUNCHERS / folder}"}
    return subprocess.run([sys.executable, "-c", code, *argv], env=env, capture_output=True, text=True, check=False)


@pytest.mark.smoke
def test_clip_0_leaves_the_gradients() -> None:
    args = json.loads(options_of("ddp/train_gpt.py", "--clip", "0").stdout.splitlines()[-1])
    assert args["clip"] == float("inf")


@pytest.mark.smoke
def test_deepspeed_takes_batch_sizes_from_its_configuration_alone() -> None:
    done = options_of("deepspeed/train.py", "--batch-size", "16")
    assert done.returncode == 2
    assert "are set in the configuration" in done.stderr


@pytest.mark.smoke
def test_megatron_layout_that_cannot_be_is_refused_with_its_numbers(training: Any) -> None:
    need("megatron/train.py")
    run = training.start("megatron/train.py", "run", "--tp", 2, "--pp", 2, "--heads", 3, forked=True)
    assert set(run.wait()) == {1}
    assert "world size 2 cannot be divided by tp x pp x cp = 4; --heads 3 cannot be divided by --tp 2" in run.output()


def test_profile_of_chosen_steps_on_a_chosen_rank(training: Any, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    (text / "a.txt").write_text("the quick brown fox " * 1000)
    env = {"KIT_PROFILE_STEPS": "2-3", "KIT_PROFILE_RANKS": "1"}
    run = training.run("ddp/train_gpt.py", "run", *SMALL, "--data", text, "--steps", 5, env=env)
    assert [path.name for path in (run.run_dir / "profile").iterdir()] == ["rank-1.json"]
    assert "aten::" in (run.run_dir / "profile" / "rank-1.json").read_text()


@pytest.mark.smoke
@pytest.mark.parametrize("path", sorted(LAUNCHERS.glob("*/launcher.toml")), ids=lambda path: path.parent.name)
def test_launcher_toml_tells_the_programs_own_defaults(path: Path) -> None:
    """What the kit checks before submit is what the program would work with."""
    for program, told in tomllib.loads(path.read_text()).get("fits", {}).items():
        need(f"{path.parent.name}/{program}")
        args = json.loads(options_of(f"{path.parent.name}/{program}").stdout.splitlines()[-1])
        assert {name: args[name] or 0 for name in told} == told


def test_throughput_counts_all_ranks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step has over all ranks, by the clock: the number of ranks divides the peak, and multiplies nothing."""
    monkeypatch.syspath_prepend(str(LAUNCHERS))
    import torch
    from lib import metrics, ranks

    clock = iter([10.0, 14.0])
    monkeypatch.setattr(metrics, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(metrics, "largest", lambda *values, world: list(values))
    world = ranks.Ranks(
        ddp_rank=0,
        ddp_world_size=4,
        ddp_local_rank=0,
        nodes=2,
        device=torch.device("cpu"),
        backend="gloo",
        control=None,
    )
    speed = metrics.Speed(tokens_per_step=32 * 128, flops_per_token=1.0, world=world)
    for _ in range(5):
        speed.step()
    assert speed.values()["tokens_per_second"] == 5 * 32 * 128 / 4
