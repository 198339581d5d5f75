"""Every launcher trains for real, in its image, over two nodes; and continues where it was stopped, to the same final loss."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from pathlib import Path

import pytest

from kit import shell
from kit.errors import KitError
from kit.images import check_against_lock, image_lock
from tests.cluster.lab import TIMEOUT_S, Lab, job_id
from tests.support import REPO

pytestmark = pytest.mark.cluster

SMALL = ["--steps", "24", "--layers", "2", "--dim", "32", "--heads", "2", "--context", "32", "--batch-size", "16"]
DIGITS = ["--epochs", "8", "--log-every", "1"]
# Name -> arguments of the program instead of the example's, other options.
EXAMPLES: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "ddp": (DIGITS, ()),
    "ddp-srun": (DIGITS, ("checkpoint.async=true",)),
    "fsdp": ([*SMALL, "--log-every", "1"], ()),
    "deepspeed-zero3-offload": (
        [*SMALL[:-2], "--log-every", "1"],  # its batch size stands in [deepspeed]
        ("deepspeed.train_batch_size=16", "checkpoint.async=true"),
    ),
    "megatron-core": ([*SMALL, "--log-every", "1", "--tp", "2", "--pp", "2"], ("checkpoint.async=true",)),
}
STOPS = ("kill -9 of a rank", "USR1", "cancel")
# Both start shapes, and two ways to stop; `make slow` runs all of them.
SOON = {("ddp", "USR1"), ("deepspeed-zero3-offload", "kill -9 of a rank")}
CASES = [
    pytest.param(name, stop, marks=() if (name, stop) in SOON else pytest.mark.slow)
    for name in EXAMPLES
    for stop in STOPS
]


def put(lab: Lab, name: str) -> None:
    """Make an example's job file the lab's job.toml. Skips where its image is not there."""
    text = (REPO / "examples" / name / "job.toml").read_text(encoding="utf-8")
    (lab.project / "job.toml").write_text(text, encoding="utf-8")
    image = next(line for line in text.splitlines() if line.startswith("image = ")).split('"')[1]
    store = (lab.project / "clusters" / f"{lab.cluster.name}.toml").read_text().split('store = "')[1].split('"')[0]
    try:
        check_against_lock.check(
            image_lock.read_lock(REPO / "containers" / image / "image.lock"), Path(store), full=False
        )
    except KitError:
        pytest.skip(f"image {image} is not in the store: kit build-image {image}")


def options(example: str, *more: str) -> list[str]:
    args, own = EXAMPLES[example]
    sets = [f"args={json.dumps(args)}", "seed=7", "checkpoint.every=4", "checkpoint.async=false", *own, *more]
    return [word for text in sets for word in ("--set", text)]


def records(run: Path) -> list[dict[str, object]]:
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []


def last_checkpoint(run: Path) -> int:
    found = [
        int(p.name.removeprefix("step-"))
        for p in (run / "checkpoints").glob("step-*")
        if (p / "complete.json").exists()
    ]
    return max(found, default=0)


def wait_for_step(run: Path, step: int) -> None:
    """Until a step is done and there is something to continue from."""
    end = time.monotonic() + TIMEOUT_S
    while last_checkpoint(run) < 4 or max((int(str(r.get("step", 0))) for r in records(run)), default=0) < step:
        log = run / "logs" / "batch.log"
        assert time.monotonic() < end, log.read_text() if log.exists() else "no batch log"
        time.sleep(0.05)


@pytest.mark.parametrize(("example", "stop"), CASES)
def test_stopped_and_resumed_is_uninterrupted(
    lab: Lab, example: str, stop: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    put(lab, example)
    whole = uninterrupted(lab, example, tmp_path_factory)
    run = lab.submit(*options(example, "retry.in_allocation=1"))
    wait_for_step(run, random.Random(example + stop).randrange(5, 16))
    if stop == "kill -9 of a rank":
        os.kill(pid_of_a_rank(run), signal.SIGKILL)
    elif stop == "USR1":  # as Slurm sends it at the lead time
        lab.slurm("scancel", "--batch", "--signal=USR1", str(job_id(run)))
    else:
        lab.kit("cancel", run.name)
    wait_until_ended(lab, run)
    # A dead rank starts again in the allocation; what was stopped on request continues when it is asked to.
    done = lab.kit(*(("status",) if stop == "kill -9 of a rank" else ("resume", "--wait")), run.name, check=False)
    log = (run / "logs" / "batch.log").read_text()
    assert done.returncode == 0, log
    seen = records(run)
    final = seen[-1]
    assert final["kind"] == "final", log
    (resumed,) = [r for r in seen if r["kind"] == "resumed"]
    stopped = [r["step"] for r in seen if r["kind"] == "stopped"]
    assert stopped == ([resumed["step"]] if stop != "kill -9 of a rank" else []), "asked to stop, it saves first"
    assert final["test_loss"] == whole["test_loss"]


_WHOLE: dict[str, dict[str, object]] = {}


def uninterrupted(lab: Lab, example: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The last record of a run that nobody stopped; made once per example."""
    if example not in _WHOLE:
        run = lab.run(*options(example))
        assert run.done.returncode == 0, run.log("batch") + run.log("rank-0")
        seen = records(run.folder)
        losses = [float(str(r["loss"])) for r in seen if r["kind"] == "step"]
        assert losses[-1] < losses[0], "the loss falls"
        assert seen[-1]["world_size"] == 4
        assert lab.settled(run.folder) == []
        _WHOLE[example] = seen[-1]
    return _WHOLE[example]


def wait_until_ended(lab: Lab, run: Path) -> None:
    lab.wait(lambda: lab.status(run)["state"] not in {"RUNNING", "PENDING", "COMPLETING"}, run)


def pid_of_a_rank(run: Path) -> int:
    """Rank 1's own process, not the shells around it."""
    job = json.loads((run / "manifest.json").read_text())["job_id"]
    wanted = {b"RANK=1", f"SLURM_JOB_ID={job}".encode()}
    for proc in Path("/proc").iterdir():
        try:
            words = (proc / "cmdline").read_bytes().split(b"\0")
            environ = set((proc / "environ").read_bytes().split(b"\0"))
        except OSError:
            continue
        if words[0].endswith(b"python3") and b"/kit/run/code/train.py" in words and wanted <= environ:
            return int(proc.name)
    raise AssertionError(f"no rank 1 of {run.name} is running: {shell.run(['ps', 'ax']).stdout}")


def test_a_debugged_program_trains(lab: Lab) -> None:
    """With every variable that --debug sets."""
    put(lab, "ddp")
    run = lab.run("--debug", *options("ddp", 'args=["--epochs", "1"]'))
    assert run.done.returncode == 0, run.log("batch") + run.log("rank-0")
    assert records(run.folder)[-1]["kind"] == "final"
    assert "DDP Initialized with" in run.log("rank-0"), "what torch says at INFO"


@pytest.mark.slow
def test_a_crash_of_torchs_own_debugging_is_named(lab: Lab) -> None:
    put(lab, "ddp")
    run = lab.run(*options("ddp", 'args=["--epochs", "1"]', "env.TORCH_DISTRIBUTED_DEBUG=DETAIL"))
    assert run.done.returncode == 139
    found = json.loads(lab.kit("why", run.folder.name, "--json").stdout)
    assert (found["rule"], found["verdict"]) == ("segfault-debug", "fix the job")


SHARDED: list[str] = []
AVERAGED = ["--set", "shape=replicas", "--set", "resources.ranks_per_node=2"]
DILOCO = [
    "--job.custom_config_module=torchtitan.components.ft.config.job_config",
    "--fault_tolerance.semi_sync_method=diloco",
    "--fault_tolerance.sync_steps=5",
    "--training.steps=20",
]
OUTER = ["--set", "shape=replicas", "--set", f"args={json.dumps(DILOCO)}"]


@pytest.mark.slow
@pytest.mark.parametrize("how", [SHARDED, AVERAGED, OUTER], ids=["fsdp", "replica groups", "diloco"])
def test_torchtitan_trains_its_debug_model(lab: Lab, how: list[str]) -> None:
    """Twenty steps on CPUs: FSDP over the nodes, torchft's average of every gradient, or DiLoCo's of every fifth step's weights."""
    put(lab, "torchtitan")
    program = (REPO / "examples" / "torchtitan" / "prepare.py").read_text(encoding="utf-8")
    (lab.project / "prepare.py").write_text(program, encoding="utf-8")
    run = lab.run(*how, "--set", "seed=7")
    assert run.done.returncode == 0, run.log("batch")
    logs = list((run.folder / "logs").glob("replica-*/rank-0.log")) or [run.folder / "logs" / "rank-0.log"]
    assert len(logs) == (1 if how is SHARDED else 2)
    trained = [_titan_steps(path.read_text()) for path in logs]
    for losses in trained:
        assert set(losses) == set(range(1, 21))
        assert losses[20] < losses[1] - 1
    if how is AVERAGED:
        assert trained[0] == trained[1], "both groups take the same steps"


def _titan_steps(log: str) -> dict[int, float]:
    """Step -> loss, as TorchTitan writes them."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", log)
    return {int(step): float(loss) for step, loss in re.findall(r"step: +(\d+) +loss: +([\d.]+)", plain)}


MEGATRON_LM = Path(os.environ.get("MEGATRON_LM", "/opt/Megatron-LM"))
TENSORS = ["--set", "megatron.tensor_model_parallel_size=2"]


def put_megatron_lm(lab: Lab) -> list[str]:
    """Make examples/megatron-lm-cpu the lab's job.toml. Returns the option that mounts the checkout; skips where there is none."""
    if not (MEGATRON_LM / "pretrain_gpt.py").is_file():
        pytest.skip("no checkout of Megatron-LM core_v0.16.1: MEGATRON_LM names none")
    put(lab, "megatron-lm-cpu")
    mount = f'[{{source="{MEGATRON_LM.resolve()}", target="/opt/Megatron-LM", flags=["ro"]}}]'
    return ["--set", f"mounts={mount}"]


@pytest.mark.slow
@pytest.mark.parametrize("how", [[], TENSORS], ids=["data parallel", "tensor parallel"])
def test_megatron_lm_trains_on_cpus(lab: Lab, how: list[str]) -> None:
    """Twenty steps of its own pretrain_gpt.py over two nodes; a checkpoint after ten."""
    run = lab.run(*put_megatron_lm(lab), *how)
    said = run.log("rank-0") + run.log("rank-1")
    assert run.done.returncode == 0, run.log("batch") + said
    losses = _megatron_lm_steps(said)
    assert set(losses) == set(range(1, 21))
    assert losses[20] < losses[1] - 2
    saved = run.folder / "checkpoints"
    assert (saved / "latest_checkpointed_iteration.txt").read_text() == "20"
    assert {path.name for path in saved.glob("iter_*")} == {"iter_0000010", "iter_0000020"}


@pytest.mark.slow
def test_megatron_lm_is_stopped_and_resumed_on_cpus(lab: Lab) -> None:
    """The signal before a time limit: Megatron-LM saves and ends, and continues to the loss of a run that nobody stopped."""
    longer = [*put_megatron_lm(lab), "--set", "megatron.train_iters=300", "--set", "checkpoint.every=1000"]
    whole = lab.run(*longer)
    assert whole.done.returncode == 0, whole.log("batch")
    run = lab.submit(*longer)
    lab.wait(lambda: len(_megatron_lm_steps(_said(run))) >= 5, run)
    lab.slurm("scancel", "--batch", "--signal=USR1", str(job_id(run)))
    wait_until_ended(lab, run)
    stopped = max(_megatron_lm_steps(_said(run)))
    assert 5 <= stopped < 300, _said(run)
    done = lab.kit("resume", "--wait", run.name, check=False)
    assert done.returncode == 0, _said(run)
    assert f"at iteration {stopped}" in _said(run)
    resumed, expected = _megatron_lm_steps(_said(run)), _megatron_lm_steps(_said(whole.folder))
    # The second line after a start is Megatron-LM's mean of both steps so far.
    second = stopped + 2
    assert resumed.pop(second) == pytest.approx((expected[second - 1] + expected.pop(second)) / 2, abs=1e-5)
    assert resumed == expected


def _said(run: Path) -> str:
    """What all ranks have written so far. Megatron-LM's last rank writes the steps."""
    return "".join(path.read_text(errors="replace") for path in sorted((run / "logs").glob("rank-*.log*")))


def _megatron_lm_steps(log: str) -> dict[int, float]:
    """Step -> loss, as Megatron-LM writes them."""
    found = re.findall(r"iteration +(\d+)/ +\d+ \|.*? lm loss: ([-+.\dE]+)", log)
    return {int(step): float(loss) for step, loss in found}


def test_the_examples_are_submitted_as_they_are(lab: Lab) -> None:
    """Every example but those that need GPUs or their own checkout is run by a test; nobody forgets a new one."""
    shipped = {p.parent.name for p in (REPO / "examples").glob("*/job.toml")}
    elsewhere = {"rl", "sft", "sweep", "diloco", "diloco-multinode", "diloco-compare"}
    elsewhere |= {"diloco-two-clusters"}  # tests/cluster/test_two_clusters.py
    elsewhere |= {"prime-rl", "prime-rl-moe", "megatron-lm", "torchtitan-sweep"}  # planned only, by unit tests
    elsewhere |= {"accelerate", "lightning", "ray", "transformers"}  # tests/foreign, with their packages
    elsewhere |= {"verl", "nemo-rl"}  # their options and their start, tests/foreign/test_ray_programs.py
    elsewhere |= {"torchtitan"}  # test_torchtitan_trains_its_debug_model
    elsewhere |= {"megatron-lm-cpu"}  # test_megatron_lm_trains_on_cpus
    assert shipped <= set(EXAMPLES) | elsewhere
