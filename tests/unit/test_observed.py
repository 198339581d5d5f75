"""Learns progress and curves of programs that report nothing to the kit. tests/unit/observed/ has what the libraries wrote.

transformers.log, lightning.log, tqdm.log and tqdm-epochs.log are the output of three short programs with Transformers 5.24,
Lightning 2.6 and tqdm 4.70 into a file. trainer_state.json, metrics.csv and transformers.tfevents.1 are of the same programs;
the other event files are of torch 2.14 and tensorboardX 2.6, run-offline.wandb of W&B 0.31.
"""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from kit.health import rank_logs
from kit.observed import event_file, log_line, run_log, trainer_files, wandb_file
from kit.observed.figures import Points
from kit.observed.metric_names import chosen, standard
from kit.record import metrics
from kit.sweeps.run_metrics_cache import metrics_of, read_run_numbers, same_metric

RECORDED = Path(__file__).parent / "observed"


def write_log(run_dir: Path, text: str, name: str = "rank-0.log") -> Path:
    path = run_dir / "logs" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def recorded(name: str) -> tuple[str, dict[int, dict[str, float]]]:
    found = run_log.read_file(RECORDED / name, name=name, whole=True)
    assert found is not None
    return found.source, dict(found.points)


def test_transformers_figures_stand_at_their_steps() -> None:
    source, points = recorded("transformers.log")
    assert source == "transformers.log: progress bar"
    assert {step: values["loss"] for step, values in points.items() if "loss" in values} == {
        10: 4.519,
        20: 4.212,
        30: 5.591,
        40: 5.116,
    }
    # The bars of the evaluations, of eight batches each, are not the training's.
    assert {step: values["eval_loss"] for step, values in points.items() if "eval_loss" in values} == {
        16: 4.748,
        32: 4.746,
        48: 4.745,
    }
    assert max(points) == 48


def test_lightnings_last_bar_is_counted_over_all_epochs() -> None:
    _, points = recorded("lightning.log")
    assert [*points] == [3 * 24]


def test_a_bar_of_tqdm_with_figures_and_another_for_loading() -> None:
    source, points = recorded("tqdm.log")
    assert source == "tqdm.log: progress bar"
    assert max(points) == 300
    # Its own last text shows 3.0 / 300.
    assert points[300]["loss"] == 0.01
    assert points[300]["lr"] == 1e-4
    assert points[300]["steps_per_second"] > 0


def test_a_bar_for_each_epoch_is_one_row_of_steps() -> None:
    source, points = recorded("tqdm-epochs.log")
    assert source == "tqdm-epochs.log: progress bar, by epoch"
    assert max(points) == 150
    assert [*points] == sorted(points)
    assert points[150]["loss"] == 0.007


@pytest.mark.parametrize(
    ("line", "step", "values"),
    [
        ("iter 250: loss 2.4000, time 123.45ms, mfu 1.20%", 250, {"loss": 2.4, "mfu": 0.012}),
        ("step 250: train loss 2.4293, val loss 2.4447", 250, {"train_loss": 2.4293, "val_loss": 2.4447}),
        (
            " [2026-01-01 10:00:00] iteration       10/     100 | consumed samples: 160 | learning rate: 1.5E-04 | "
            "lm loss: 9.876543E+00 | grad norm: 1.234 | number of nan iterations:   0 |",
            10,
            {"learning_rate": 1.5e-4, "lm_loss": 9.876543, "grad_norm": 1.234, "consumed_samples": 160},
        ),
        (
            "[titan] 2026-01-01 10:00:00,123 - root - INFO - \x1b[31mstep:  7  \x1b[32mloss:  8.1234  \x1b[33mgrad_norm:  1.2300  "
            "\x1b[36mmemory:  1.00GiB(1.20%)  \x1b[34mtps: 1,234  \x1b[39m",
            7,
            {"loss": 8.1234, "grad_norm": 1.23, "memory": 1.0, "tps": 1234.0},
        ),
        ("step 00010/21400 (0.05%) | loss: 10.8 | tok/sec: 424,242", 10, {"loss": 10.8, "tok/sec": 424242.0}),
        ("[2026-01-01 10:00:00,1] [INFO] [logging.py:96:f] step=10, skipped=0, lr=[1e-05]", 10, {"lr": 1e-5}),
        ("Epoch [2/10], Step [100/600], Loss: 2.1", 100, {"Loss": 2.1}),
        ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 0.123456", 640, {"Loss": 0.123456}),
        ("Epoch: [1][  10/5005]\tTime  0.1 ( 0.2)\tLoss 6.9e+00 (7.0e+00)\tAcc@1   0.5 (  0.1)", 10, {"Loss": 6.9}),
        ('{"step": 5, "loss": 2.5, "text": "y"}', 5, {"loss": 2.5}),
        ('INFO:root:{"iter": 5, "eval/loss": 2.5}', 5, {"eval/loss": 2.5}),
        ("iteration 12 residual 1e-3", 12, {"residual": 1e-3}),
        ("epoch 3: loss = 0.5, val_loss = 0.25", 3, {"loss": 0.5, "val_loss": 0.25}),
    ],
)
def test_forms_of_a_line(line: str, step: int, values: dict[str, float]) -> None:
    found = log_line.read_line(line)
    assert found is not None
    assert found.step == step
    assert {name: found.values.get(name) for name in values} == values


@pytest.mark.parametrize(
    "line",
    [
        "saved at step 100",
        "max steps: 1000",
        "tokens per step: 500",
        "step time: 0.5 s",
        "step: 1.5 s",
        "2026-01-01T00:00:01+00:00 n1: rank 0 of 2: node rank 0, local rank 0, restart 0",
        "Loading shards: 100%|██████████| 20/20 [00:00<00:00, 882.37it/s]",
        "warning: 3 files in 5 folders",
        "{'name': 'x', 'size': 5}",
    ],
)
def test_lines_without_progress(line: str) -> None:
    found = log_line.read_line(line)
    assert found is None or found.step is None


def test_a_loss_that_is_not_a_number_stays_one() -> None:
    found = log_line.read_line("step 5: loss nan")
    assert found is not None
    assert math.isnan(found.values["loss"])


def test_status_names_the_source(tmp_path: Path) -> None:
    write_log(tmp_path, "".join(f"iter {n}: loss {4 / n:.4f}, time 20.0ms\n" for n in range(10, 110, 10)))
    found = metrics.latest(tmp_path)
    assert found is not None
    assert str(found) == 'step 100, loss 0.0400 (from rank-0.log: "iter N")'
    assert metrics_of(tmp_path, reduce="max")["loss"] == 0.4


def test_what_the_program_reports_itself_counts_alone(tmp_path: Path) -> None:
    write_log(tmp_path, "step 100: loss 0.5\n")
    (tmp_path / "metrics.jsonl").write_text('{"kind": "step", "time": "1", "step": 7, "loss": 2.0}\n')
    found = metrics.latest(tmp_path)
    assert found is not None
    assert (found.step, found.source) == (7, "")
    assert [one["step"] for one in metrics.records(tmp_path)] == [7]


def test_validation_lines_join_the_training_steps(tmp_path: Path) -> None:
    log = "".join(
        f"iter {n}: loss {4 - n / 100:.2f}\n" + (f"step {n}: train loss 9.0, val loss 3.5\n" if n % 50 == 0 else "")
        for n in range(10, 110, 10)
    )
    write_log(tmp_path, log)
    records = metrics.records(tmp_path)
    assert {one["step"]: one["eval_loss"] for one in records if "eval_loss" in one} == {50: 3.5, 100: 3.5}
    # `train loss` of such a line is a second figure beside `loss`, which stays what it was.
    assert [one["loss"] for one in records if one["step"] == 100] == [3.0]


def test_steps_of_each_epoch_are_counted_on(tmp_path: Path) -> None:
    log = "".join(f"Epoch [{e}/3], Step [{n}/200], Loss: 1.0\n" for e in (1, 2, 3) for n in (100, 200))
    write_log(tmp_path, log)
    assert [one["step"] for one in metrics.records(tmp_path)] == [100, 200, 300, 400, 500, 600]


def test_a_run_that_began_again_shows_where_it_is_now(tmp_path: Path) -> None:
    write_log(tmp_path, "step 80: loss 1.0\nstep 90: loss 0.9\nstep 50: loss 1.4\n")
    found = metrics.latest(tmp_path)
    assert found is not None
    assert (found.step, found.values["loss"]) == (50, 1.4)


def test_the_rank_that_prints_is_found(tmp_path: Path) -> None:
    for rank in range(40):
        write_log(tmp_path, "loading\n", f"rank-{rank}.log")
    write_log(tmp_path, "iteration 5/ 10 | lm loss: 2.0E+00 |\n", "rank-39.log")
    found = metrics.latest(tmp_path)
    assert found is not None
    assert found.source == 'rank-39.log: "iteration N"'


def test_a_log_of_gigabytes_is_read_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_log(tmp_path, "step 1: loss 8.0\n")
    with path.open("r+b") as log:
        log.truncate(5 << 30)
        log.seek(0, os.SEEK_END)
        log.write(b"\nstep 900: loss 0.5\n")
    read = []
    right = log_line.read_line

    def counted(text: str) -> log_line.Line | None:
        read.append(len(text))
        return right(text)

    monkeypatch.setattr(log_line, "read_line", counted)
    assert [one["step"] for one in metrics.records(tmp_path)] == [1, 900]
    assert sum(read) <= 16 * log_line.MOST_CHARACTERS


@pytest.mark.parametrize(
    "text",
    [
        "{" * 100_000 + "}" * 100_000 + "1",
        "step " * 100_000 + "1",
        "a1 " * 100_000,
        "step 1 " + "loss: " * 50_000,
        "1" * 300_000,
        "epoch " + "[" * 100_000 + "1/2",
        '{"step": 1e400, "loss": 1' + "0" * 500 + "}",
        "step 99999999999999999999: loss 1e999",
        "\x1b[" * 100_000 + "1",
        "1/2 [" + "0" * 100_000 + "<1, 1it/s]",
    ],
)
def test_hostile_lines_end(text: str, tmp_path: Path) -> None:
    write_log(tmp_path, f"{text}\n" * 3)
    for record in metrics.records(tmp_path):
        assert 0 <= record["step"] < 1 << 53


def test_names_and_points_are_bounded() -> None:
    points = Points()
    for step in range(50_000):
        points.add(step, {"loss": 1.0, f"name-{step}": 2.0})
    points.add(50_000, {"loss": 0.5})
    kept = points.take()
    assert len(kept) <= 20_001
    assert kept[-1] == (50_000, {"loss": 0.5})
    assert len({name for _, values in kept for name in values}) <= 200


def test_names_of_a_metric() -> None:
    written = ("eval/loss", "val loss", "validation_loss", "Loss/valid")
    assert {standard(one) for one in written} == {"eval_loss"}
    assert chosen(["train_loss", "loss"]) == {"train_loss": "train_loss", "loss": "loss"}
    assert chosen(["lm loss"]) == {"lm loss": "loss"}
    assert same_metric("eval/loss", ["loss", "eval_loss"]) == "eval_loss"
    assert same_metric("eval/loss", ["eval/loss", "eval_loss"]) == "eval/loss"


def test_top_shows_the_steps_of_ranks_that_print(tmp_path: Path) -> None:
    start = "2026-01-01T00:00:01+00:00 n7: rank 1 of 2: node rank 0, local rank 1, restart 0\n"
    write_log(tmp_path, "loading\n")
    bar = "\r  1%|▏         | 4/300 [00:00<00:01, 20.00it/s, loss=0.75]"
    write_log(tmp_path, start + bar, "rank-1.log")
    (found,) = rank_logs.read_steps(tmp_path)
    assert (found.rank, found.node, found.step, found.took) == (1, "n7", 4, 0.05)
    assert found.source == "rank-1.log: progress bar"


def test_files_that_torchrun_wrote_at_the_newest_start_are_read(tmp_path: Path) -> None:
    write_log(tmp_path, "2026-01-01T00:00:01+00:00 n7: rank 0 of 1: node rank 0, local rank 0, restart 1\n")
    write_log(tmp_path, "".join(f"step {n}: loss {1 / n}\n" for n in range(1, 90)), "rank-0.1.stdout.log")
    write_log(tmp_path, "".join(f"step {n}: loss {1 / n}\n" for n in range(50, 60)), "rank-0.2.stdout.log")
    (found,) = rank_logs.read_steps(tmp_path)
    assert (found.rank, found.node, found.step) == (0, "n7", 59)
    assert found.source == 'rank-0.2.stdout.log: "step N"'
    assert [record["step"] for record in metrics.records(tmp_path)][-1] == 89, (
        "curves come from the file with most figures"
    )


def test_results_keep_the_figures_of_ended_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    points = tmp_path / "points"
    write_log(points / "p.0", "step 5: loss 2.0\n")
    write_log(points / "p.1", "step 5: loss 3.0\n")
    state = points / "p.0" / "state"
    state.mkdir()
    (state / "events.jsonl").write_text('{"event": "end", "epoch": 100, "exit_code": 0}\n')
    (state / "closed").write_text("101")
    first = read_run_numbers(points, ["p.0", "p.1"])
    assert first["p.0"].values["loss"] == 2.0
    assert first["p.0"].sources == ('rank-0.log: "step N"',)
    asked: list[object] = []
    right = metrics.records

    def counted(run_dir: Path | str) -> list[dict[str, Any]]:
        asked.append(run_dir)
        return right(run_dir)

    monkeypatch.setattr(metrics, "records", counted)
    assert read_run_numbers(points, ["p.0", "p.1"]) == first
    assert asked == [f"{points}/p.1"]


def test_event_files_of_three_writers() -> None:
    found = event_file.read_file(RECORDED / "torch.tfevents.1", name="a", since=0)
    assert found is not None
    # The last scalar is in the form of a tensor.
    assert [step for step, _ in found.points] == [*range(31)]
    assert found.points[30][1]["Loss/train"] == pytest.approx(0.05)
    found = event_file.read_file(RECORDED / "tensorboardX.tfevents.1", name="a", since=0)
    assert found is not None
    assert found.points[-1][0] == 29
    # Its histogram and its text are no scalars.
    assert found.points[-1][1] == pytest.approx({"train/loss": 0.1, "lr": 0.071, "eval/loss": 0.5})
    found = event_file.read_file(RECORDED / "transformers.tfevents.1", name="a", since=0)
    assert found is not None
    assert {step: round(v["eval/loss"], 3) for step, v in found.points if "eval/loss" in v} == {
        16: 4.748,
        32: 4.746,
        48: 4.745,
    }


def test_a_wandb_run_over_several_blocks() -> None:
    found = wandb_file.read_file(RECORDED / "run-offline.wandb", name="a", since=0)
    assert found is not None
    assert (RECORDED / "run-offline.wandb").stat().st_size > 2 * 32768
    assert [values["train/loss"] for _, values in found.points[:200]] == [4.0 / n for n in range(1, 201)]
    assert found.points[199][1]["nested.a"] == 200.0
    assert found.points[200] == (200, {"eval/loss": 0.25})


def test_tables_of_lightning_and_transformers() -> None:
    found = trainer_files.read_csv(RECORDED / "metrics.csv", name="a")
    assert found is not None
    assert found.points[-1][0] == 71
    assert {*found.points[-1][1]} == {"train_loss", "val_loss"}
    found = trainer_files.read_trainer_state(RECORDED / "trainer_state.json", name="a")
    assert found is not None
    assert {step: round(values["loss"], 3) for step, values in found.points if "loss" in values} == {
        10: 4.519,
        20: 4.212,
        30: 5.591,
        40: 5.116,
    }


def test_trackers_give_curves_and_the_log_gives_the_rest(tmp_path: Path) -> None:
    write_log(tmp_path, "iter 500: loss 9.0, reward: 7.5\n")
    folder = tmp_path / "workspace" / "runs" / "a"
    folder.mkdir(parents=True)
    shutil.copy(RECORDED / "tensorboardX.tfevents.1", folder / "events.out.tfevents.1.n1")
    records = metrics.records(tmp_path)
    assert [one["loss"] for one in records if "loss" in one][-1] == pytest.approx(0.1)
    assert {one["_source"] for one in records if "eval_loss" in one} == {
        "TensorBoard, workspace/runs/a/events.out.tfevents.1.n1"
    }
    assert [(one["step"], one["reward"]) for one in records if "reward" in one] == [(500, 7.5)]
    found = metrics.latest(tmp_path)
    assert found is not None
    assert (found.step, found.source) == (500, 'rank-0.log: "iter N"')
    assert found.values["eval_loss"] == 0.5


def test_files_that_were_submitted_are_not_the_runs(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "state").mkdir()
    old = tmp_path / "workspace" / "metrics.csv"
    old.parent.mkdir()
    shutil.copy(RECORDED / "metrics.csv", old)
    assert metrics.records(tmp_path) != []
    # The recorded file was copied, with its time, long before the run's first event.
    os.utime(old, (1000, 1000))
    (tmp_path / "state" / "events.jsonl").write_text('{"event": "start", "epoch": 5000}\n')
    assert metrics.records(tmp_path) == []


KIND_OF = {
    "torch.tfevents.1": "TensorBoard",
    "run-offline.wandb": "W&B",
    "metrics.csv": "Lightning",
    "trainer_state.json": "Transformers",
}


@pytest.mark.parametrize("name", KIND_OF)
def test_cut_and_changed_files_raise_nothing(name: str, tmp_path: Path) -> None:
    whole = (RECORDED / name).read_bytes()
    path = tmp_path / name
    for place in range(0, min(len(whole), 3000), 61):
        for content in (whole[:place], whole[:place] + b"\xff" + whole[place + 1 :], whole[place:]):
            path.write_bytes(content)
            found = (
                event_file.read_file(path, name="a", since=0),
                wandb_file.read_file(path, name="a", since=0),
                trainer_files.read_csv(path, name="a"),
                trainer_files.read_trainer_state(path, name="a"),
            )
            # What is left of the file is read, and never as the file of another tracker.
            kinds = {one.source.partition(",")[0] for one in found if one is not None}
            assert kinds <= {KIND_OF[name]}, (place, content[:20])
            if content == whole:
                assert kinds == {KIND_OF[name]}


def test_the_end_of_a_long_event_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = (RECORDED / "torch.tfevents.1").read_bytes()
    path = tmp_path / "a"
    path.write_bytes(whole)
    monkeypatch.setattr(event_file, "_HALF", 400)
    found = event_file.read_file(path, name="a", since=0)
    assert found is not None
    steps = [step for step, _ in found.points]
    assert steps[0] == 0
    assert steps[-1] == 30
    assert len(steps) < 31
