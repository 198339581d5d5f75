"""launchers/ddp/train.py on gloo: it learns, and a run that was stopped in any way ends as if it never had been."""

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(240)
PROGRAM = "ddp/train.py"
SHORT = ("--epochs", 4, "--log-every", 1)
EPOCH = ("train_loss", "test_loss", "accuracy")


@pytest.fixture(scope="module")
def whole_run(module_training: Any) -> Path:
    """The folder of the run that nobody stopped."""
    folder: Path = module_training.run(PROGRAM, "whole", *SHORT).run_dir
    return folder


@pytest.fixture(scope="module")
def whole(whole_run: Path, tools: Any) -> dict[int, tuple[float, ...]]:
    """Its curve: losses and accuracy by step."""
    curve: dict[int, tuple[float, ...]] = tools.curve(whole_run, *EPOCH)
    return curve


@pytest.mark.smoke
def test_four_ranks_of_torchrun_reach_95_percent(training: Any, tools: Any) -> None:
    run = training.run(PROGRAM, "run", "--epochs", 10, ranks=4, shape="torchrun")
    (final,) = tools.records(run.run_dir, "final")
    assert final["accuracy"] >= 0.95
    assert (final["world_size"], final["nodes"], final["step"]) == (4, 1, 10 * (1438 // 64))
    assert (run.run_dir / "checkpoints" / "latest").read_text() == "step-00000220\n"
    steps = sorted(record["step"] for record in tools.records(run.run_dir, "epoch"))
    best = (run.run_dir / "checkpoints" / "best").read_text().strip()
    kept = {f"step-{step:08d}" for step in steps[-3:]} | {best}
    assert {path.name for path in (run.run_dir / "checkpoints").glob("step-*")} == kept


def test_usr1_to_one_rank_stops_all_and_the_resumed_run_is_the_same(training: Any, tools: Any, whole: Any) -> None:
    first = training.start(PROGRAM, "run", *SHORT)
    first.until_step(30)
    first.processes[1].send_signal(signal.SIGUSR1)
    assert first.wait() == [128 + signal.SIGUSR1] * 2, first.output()
    stopped = json.loads((first.run_dir / "state" / "stopped.json").read_text())
    assert stopped["signal"] == signal.SIGUSR1
    assert 30 <= stopped["step"] < 88
    second = training.run(PROGRAM, "run", *SHORT)
    assert tools.records(second.run_dir, "resumed")[-1]["step"] == stopped["step"]
    assert not (second.run_dir / "state" / "stopped.json").exists()
    assert tools.curve(second.run_dir, *EPOCH) == whole


def test_term_to_every_process_as_slurm_sends_it(training: Any, tools: Any, whole: Any) -> None:
    first = training.start(PROGRAM, "run", *SHORT, "--workers", 2)
    first.until_step(30)
    for process in first.processes:  # the ranks and their loader processes
        os.killpg(process.pid, signal.SIGTERM)
    assert first.wait() == [143, 143], first.output()
    assert tools.curve(training.run(PROGRAM, "run", *SHORT).run_dir, *EPOCH) == whole


def test_kill_of_a_rank_and_the_resumed_run_is_the_same(training: Any, tools: Any, whole: Any) -> None:
    options = (*SHORT, "--checkpoint-every", 5, "--checkpoint-async")
    first = training.start(PROGRAM, "run", *options)
    first.until_step(37)
    first.processes[1].kill()
    assert first.wait()[0] not in (0, None), "the other rank must not hang or succeed"
    second = training.run(PROGRAM, "run", *options)
    assert tools.records(second.run_dir, "resumed")[-1]["step"] >= 25
    assert tools.curve(second.run_dir, *EPOCH) == whole
    assert not list((second.run_dir / "checkpoints").glob(".tmp-*"))


def test_ranks_die_with_their_torchrun(training: Any) -> None:
    run = training.start(PROGRAM, "run", "--epochs", 500, "--log-every", 1, shape="torchrun")
    run.until_step(5)
    torchrun = run.processes[0]
    children = Path(f"/proc/{torchrun.pid}/task/{torchrun.pid}/children").read_text().split()
    ranks = [pid for pid in children if PROGRAM in Path(f"/proc/{pid}/cmdline").read_text()]
    assert len(ranks) == 2
    torchrun.kill()
    torchrun.wait()
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_text() for pid in ranks):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "no marker"])
def test_damaged_newest_checkpoint_is_skipped_with_a_warning(
    training: Any, tools: Any, whole: Any, whole_run: Path, damage: str
) -> None:
    shutil.copytree(whole_run / "checkpoints", training.folder / "run" / "checkpoints")
    newest = training.folder / "run" / "checkpoints" / "step-00000088"
    state = newest / "state.pt"
    data = state.read_bytes()
    if damage == "truncated":
        state.write_bytes(data[: len(data) // 2])
    elif damage == "flipped":
        state.write_bytes(data[:5000] + bytes([data[5000] ^ 1]) + data[5001:])
    else:
        (newest / "complete.json").unlink()
    second = training.run(PROGRAM, "run", *SHORT)
    assert f"warning: checkpoint {newest} is skipped" in second.output()
    assert tools.records(second.run_dir, "resumed")[-1]["step"] == 66
    assert tools.curve(second.run_dir, *EPOCH)[88] == whole[88]
    assert (newest / "complete.json").is_file()


def test_resume_on_another_world_size(training: Any, tools: Any) -> None:
    options = ("--epochs", 3, "--log-every", 1)
    first = training.start(PROGRAM, "run", *options)
    first.until_step(26)
    for process in first.processes:
        process.terminate()
    assert first.wait() == [143, 143], first.output()
    run_dir = training.run(PROGRAM, "run", *options, shape="single").run_dir
    losses = [record["train_loss"] for record in tools.records(run_dir, "epoch")]
    assert losses == sorted(losses, reverse=True)
    assert tools.records(run_dir, "final")[0]["accuracy"] > 0.9


def test_mixed_precision_accumulation_and_loader_processes(training: Any, tools: Any) -> None:
    run = training.run(PROGRAM, "run", "--epochs", 3, "--precision", "bf16", "--accumulate", 2, "--workers", 1)
    assert tools.records(run.run_dir, "final")[0]["accuracy"] > 0.8


def test_batch_that_does_not_divide_is_refused_with_its_numbers(training: Any) -> None:
    run = training.start(PROGRAM, "run", "--batch-size", 50, "--accumulate", 4)
    assert set(run.wait()) == {1}
    assert "--batch-size 50 cannot be divided over 2 ranks x 4 accumulation steps" in run.output()
    assert "Traceback" not in run.output()


@pytest.mark.smoke
def test_mnist_files_and_class_folders(training: Any, tools: Any, tmp_path: Path) -> None:
    def idx(name: str, *shape: int) -> None:
        size = 1
        for side in shape:
            size *= side
        header = bytes([0, 0, 8, len(shape)]) + b"".join(side.to_bytes(4, "big") for side in shape)
        (tmp_path / name).write_bytes(header + bytes(index % 10 for index in range(size)))

    idx("train-images-idx3-ubyte", 128, 12, 10)
    idx("train-labels-idx1-ubyte", 128)
    idx("t10k-images-idx3-ubyte", 30, 12, 10)
    idx("t10k-labels-idx1-ubyte", 30)
    run = training.run(PROGRAM, "mnist", "--epochs", 1, "--data", tmp_path, shape="single")
    assert tools.records(run.run_dir, "final")[0]["step"] == 2

    image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    for part in ("train", "val"):
        for shade, name in enumerate(("black", "white")):
            folder = tmp_path / "classes" / part / name
            folder.mkdir(parents=True)
            for number in range(16):
                image.new("RGB", (20, 24), (shade * 255,) * 3).save(folder / f"{number}.png")
    options = ("--data", tmp_path / "classes", "--epochs", 8, "--batch-size", 8, "--image-size", 8)
    run = training.run(PROGRAM, "classes", *options, shape="single")
    assert tools.records(run.run_dir, "final")[0]["accuracy"] == 1.0
