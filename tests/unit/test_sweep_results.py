"""Results: which value counts, what is best, how files and plots are written."""

from __future__ import annotations

import csv
import gc
import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import ValidationError

from kit.cli.results import _print as printed
from kit.errors import ConfigError, RunError, ToolError, UsageError
from kit.files import json_lines
from kit.record import metrics
from kit.record.manifest import Manifest
from kit.schema.sweep import Sweep, Value
from kit.sweeps import run_metrics_cache
from kit.sweeps.record import RecordedPoint, SentArray, SweepPaths, SweepRecord
from kit.sweeps.results import plot, result_files
from kit.sweeps.results.results import Results, gather
from kit.sweeps.run_metrics_cache import Reduce, metrics_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def manifest(task: int) -> Manifest:
    what = {
        "run_id": "r",
        "job_name": "digits",
        "launcher": "ddp",
        "shape": "srun",
        "cluster": "here",
        "runtime": "bare",
    }
    where = {
        "image": "",
        "image_name": None,
        "image_digest": "",
        "job_file": "job.toml",
        "argv": (),
        "user": "ada",
        "git": None,
    }
    size = {"nodes": 1, "world_sizes": {"train": 1}, "seed": 0, "versions": {}, "submitted_at": NOW}
    return Manifest.model_validate({**what, **where, **size, "job_id": 7, "array_task": task})


def write_sweep(root: Path, points: list[tuple[dict[str, Value], list[dict[str, object]], int | None]]) -> Path:
    """A sweep whose points have these values, metrics records and exit codes (None: still without an end)."""
    folder = root / "digits-1"
    paths = SweepPaths(folder)
    for number, (_, records, code) in enumerate(points):
        run = paths.point(number)
        (run / "state").mkdir(parents=True)
        manifest(number).write(run / "manifest.json")
        (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        if code is not None:
            end = {"event": "end", "job_id": 7, "restart": 0, "exit_code": str(code)}
            (run / "state" / "events.jsonl").write_text(json.dumps(end) + "\n")
    SweepRecord(
        sweep_id="digits-1", job_name="digits", job_file="job.toml", cluster="here", seed=0,
        submitted_at=NOW, metric="loss", goal="min",
        points=tuple(RecordedPoint(index=n, name="", values=values) for n, (values, _, _) in enumerate(points)),
        arrays=(SentArray(number=0, job_id=7, members=tuple(range(len(points))), argv=()),),
    ).write(paths)  # fmt: skip
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_sweep(
        tmp_path,
        [
            (
                {"args.--lr": 0.001, "seed": 1},
                [{"kind": "epoch", "loss": 0.2, "lr": 9}, {"kind": "final", "loss": 0.5}],
                0,
            ),
            ({"args.--lr": 0.01, "seed": 1}, [{"kind": "final", "loss": 0.3, "steps": 7, "on": True, "who": "x"}], 0),
            ({"args.--lr": 0.1, "seed": 1}, [{"kind": "final", "loss": float("nan")}], 0),
            ({"args.--lr": 1.0, "seed": 1}, [], 3),
        ],
    )


def gathered(folder: Path, **options: object) -> Results:
    return gather(folder, queue=lambda _: {}, **options)  # type: ignore[arg-type]


def test_the_best_first_then_diverged_then_without_metric(folder: Path) -> None:
    found = gathered(folder)
    assert [row.index for row in found.rows] == [1, 0, 2, 3]
    assert [row.state for row in found.rows] == ["COMPLETED", "COMPLETED", "COMPLETED", "FAILED"]
    assert found.best is not None
    assert found.best.metrics == {"loss": 0.3, "steps": 7}, "text, flags and bookkeeping are not metrics"
    assert [row.index for row in gathered(folder, goal="max").rows] == [0, 1, 2, 3]
    assert [row.index for row in gathered(folder, reduce="min").rows] == [0, 1, 2, 3], "0.2 was reached on the way"


def test_points_that_ran_different_code_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`kit sweep --retry` after a change of the code: the table holds numbers of two programs."""
    for number, tree in enumerate(("a" * 64, "a" * 64, "b" * 64)):
        path = SweepPaths(folder).point(number) / "manifest.json"
        made = json.loads(path.read_text()) | {"workspace": {"folder": "/w", "tree": tree}}
        path.write_text(json.dumps(made))
    found = gathered(folder)
    assert result_files.facts(found)["codes"] == {"a" * 64: [0, 1], "b" * 64: [2]}
    printed(found)
    said = capsys.readouterr().out
    assert "the points ran 2 states of the code: points 0-1: aaaaaaaaaaaa; points 2: bbbbbbbbbbbb\n" in said
    assert "  try: kit diff digits-1.0 digits-1.2\n" in said


def test_a_metric_that_diverged_is_null_in_json_and_never_the_best(folder: Path, tmp_path: Path) -> None:
    found = json.loads(result_files.as_json(gathered(folder)), parse_constant=lambda word: f"{word} is not JSON")
    assert [row["loss"] for row in found["points"]] == [0.3, 0.5, None, None]
    diverged = write_sweep(tmp_path / "other", [({"seed": 1}, [{"loss": float("nan")}], 0)])
    assert gathered(diverged).best is None


def test_the_best_is_a_completed_point_and_what_is_left_out_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A point that failed on its way has the lowest loss; two points have none at all."""
    points: list[tuple[dict[str, Value], list[dict[str, object]], int | None]] = [
        ({"seed": 1}, [{"loss": 0.1}], 3),
        ({"seed": 2}, [{"loss": 0.4}], 0),
        ({"seed": 3}, [{"loss": 0.6}], 1),
        ({"seed": 4}, [], 3),
        ({"seed": 5}, [], 0),
    ]
    found = gathered(write_sweep(tmp_path, points))
    assert found.best is not None
    assert found.best.index == 1
    assert [row.index for row in found.better_but_not_done] == [0]
    assert found.without_result == {"FAILED": 1, "COMPLETED": 1}
    printed(found)
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "best: point 1 (seed=2): loss 0.4",
        "not counted: point 0 is FAILED with a better loss so far: 0.1",
        "no result: 2 of 5 points have no loss (1 COMPLETED, 1 FAILED)",
    ]
    facts = json.loads(result_files.as_json(found))
    assert (facts["best"], facts["better_but_not_done"]) == (1, [0])
    assert facts["without_result"] == {"FAILED": 1, "COMPLETED": 1}
    none = gathered(write_sweep(tmp_path / "none", points[:1]))
    assert (none.best, [row.index for row in none.better_but_not_done]) == (None, [0])


@pytest.mark.parametrize(
    ("metric", "goal"),
    [
        ("accuracy", "max"),
        ("val/acc", "max"),
        ("eval_reward", "max"),
        ("f1", "max"),
        ("test_loss", "min"),
        ("Perplexity", "min"),
        ("error_rate", "min"),
        ("quality", None),
        ("reward_loss", None),
        ("glossary", None),
    ],
)
def test_a_goal_is_what_the_metrics_name_says_or_is_asked_for(tmp_path: Path, metric: str, goal: str | None) -> None:
    table = {"grid": {"seed": [1, 2]}, "metric": metric}
    folder = write_sweep(tmp_path, [({"seed": 1}, [{metric: 0.1}], 0), ({"seed": 2}, [{metric: 0.9}], 0)])
    if goal is None:
        with pytest.raises(ValidationError, match="does not say whether a small or a large value is better"):
            Sweep.model_validate(table)
        with pytest.raises(UsageError, match="does not say whether a small or a large value is better"):
            gathered(folder, metric=metric)
    else:
        assert Sweep.model_validate(table).best_is == goal
        best = gathered(folder, metric=metric).best
        assert best is not None
        assert best.index == (1 if goal == "max" else 0)
    assert Sweep.model_validate({**table, "goal": "max"}).best_is == "max"
    best = gathered(folder, metric=metric, goal="min").best
    assert best is not None
    assert best.index == 0


def test_an_unknown_metric_names_the_known(folder: Path) -> None:
    with pytest.raises(RunError) as caught:
        gathered(folder, metric="los")
    assert caught.value.hint == "did you mean 'loss'?; they wrote loss, lr, steps"


def test_a_line_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"loss": 1.5}\n[1]\n{"loss": 1.')
    assert metrics_of(tmp_path) == {"loss": 1.5}
    assert metrics_of(tmp_path / "none") == {}


REDUCE: tuple[Reduce, ...] = ("last", "min", "max")


@pytest.mark.parametrize("also", [{}, {"note": "x"}])
def test_last_least_and_greatest_whatever_keys_a_record_has(tmp_path: Path, also: dict[str, str]) -> None:
    """Records with the same keys are read another way than such as differ: both give the same numbers."""
    losses: list[float | str | bool | None] = [3.0, 1.0, "none", None, True, 2]
    lines = [json.dumps({"kind": "step", "restart": 0, "loss": one} | (also if one == 1.0 else {})) for one in losses]
    (tmp_path / "metrics.jsonl").write_text("\n\n".join(lines) + "\n")
    found = {how: metrics_of(tmp_path, reduce=how) for how in REDUCE}
    assert found == {"last": {"loss": 2}, "min": {"loss": 1.0}, "max": {"loss": 3.0}}


def test_the_garbage_collector_is_as_it_was(folder: Path) -> None:
    assert gc.isenabled()
    gather(folder, queue=lambda _: {})
    assert gc.isenabled()
    with pytest.raises(RunError):
        gather(folder, queue=lambda _: {}, metric="nothing")
    assert gc.isenabled()


def test_files(folder: Path, tmp_path: Path) -> None:
    found = gathered(folder)
    for name in ("a.csv", "b.json", "c.parquet"):
        result_files.write(found, tmp_path / "out" / name)
    with (tmp_path / "out" / "a.csv").open() as text:
        rows = list(csv.DictReader(text))
    assert [(row["point"], row["lr"], row["metrics.lr"], row["loss"]) for row in rows[:2]] == [
        ("1", "0.01", "", "0.3"), ("0", "0.001", "9", "0.5"),
    ], "a metric and a key of one name stay apart"  # fmt: skip
    assert [p["point"] for p in json.loads((tmp_path / "out" / "b.json").read_text())["points"]] == [1, 0, 2, 3]
    parquet = pytest.importorskip("pyarrow.parquet")
    assert parquet.read_table(tmp_path / "out" / "c.parquet").column("loss").to_pylist()[:2] == [0.3, 0.5]
    with pytest.raises(UsageError, match="is not a known format"):
        result_files.write(found, tmp_path / "a.xlsx")


def test_columns_of_mixed_types_become_text_in_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    folder = write_sweep(tmp_path, [({"var.x": 1}, [], 0), ({"var.x": "auto"}, [], 0)])
    result_files.write(gathered(folder), tmp_path / "x.parquet")
    assert parquet.read_table(tmp_path / "x.parquet").column("x").to_pylist() == ["1", "auto"]


@pytest.mark.parametrize(
    ("values", "logarithmic"),
    [
        ([1e-3, 3e-3, 1e-2], True),
        ([1, 2, 3], False),
        ([1, 2, 4], True),
        ([0.1, 0.2, 0.3, 0.4], False),
        ([1, 200], True),
        ([1, 2], False),
        ([0, 1, 1000], False),
        ([-1, 1, 100], False),
        ([0.5, 40, 90], True),
        ([64, 128, 256, 512], True),
        ([5], False),
    ],
)
def test_a_log_axis_where_the_values_are_logarithmic(values: list[float], logarithmic: bool) -> None:
    assert plot.is_logarithmic(values) is logarithmic


def test_series_by_the_other_keys_with_the_mean_over_seeds(tmp_path: Path) -> None:
    points: list[tuple[dict[str, Value], list[dict[str, object]], int | None]] = [
        (
            {"args.--lr": lr, "args.--optimizer": kind, "seed": seed},
            [{"loss": lr * (2 if kind == "sgd" else 1) + seed}],
            0,
        )
        for lr in (0.1, 0.2)
        for kind in ("adamw", "sgd")
        for seed in (1, 3)
    ]
    series = {one.label: one for one in plot.series_of(gathered(write_sweep(tmp_path, points)), "args.--lr")}
    assert set(series) == {"optimizer=adamw", "optimizer=sgd"}
    assert [at for at, _ in series["optimizer=sgd"].line] == [0.1, 0.2]
    assert [y for _, y in series["optimizer=sgd"].line] == pytest.approx([2.2, 2.4])
    assert len(series["optimizer=sgd"].dots) == 4


@pytest.mark.parametrize("kind", ["png", "svg", "html"])
def test_the_same_results_make_the_same_plot(folder: Path, tmp_path: Path, kind: str) -> None:
    pytest.importorskip("matplotlib")
    first, second = tmp_path / f"1.{kind}", tmp_path / f"2.{kind}"
    for path in (first, second):
        plot.draw(gathered(folder), path)
    assert first.read_bytes() == second.read_bytes()
    start = {"png": b"\x89PNG", "svg": b"<?xml", "html": b"<!DOCTYPE html>"}[kind]
    assert first.read_bytes().startswith(start)
    if kind == "html":
        text = first.read_text()
        assert "<svg" in text
        assert "<td>0.01</td>" in text
        assert re.findall(r'(?:src|href)="(?!#)', text) == [], "nothing is loaded from elsewhere"


def test_what_cannot_be_plotted_says_why(folder: Path, tmp_path: Path) -> None:
    found = gathered(folder)
    with pytest.raises(ConfigError, match="is not a key of this sweep; allowed: lr, seed"):
        plot.draw(found, tmp_path / "a.png", x="optimizer")
    with pytest.raises(UsageError, match="is not a known format"):
        plot.draw(found, tmp_path / "a.pdf")
    with pytest.raises(RunError, match="no point has numbers"):
        plot.draw(
            gathered(write_sweep(tmp_path / "other", [({"args.--x": 1}, [], 0), ({"args.--x": 2}, [], 0)])),
            tmp_path / "a.png",
        )


def test_without_the_extra_the_command_that_installs_it_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("matplotlib", "pyarrow"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(ToolError) as caught:
        plot.draw(gathered(folder), tmp_path / "a.png")
    assert "slurm-kit[plot]" in caught.value.hint
    with pytest.raises(ToolError) as caught:
        result_files.write(gathered(folder), tmp_path / "a.parquet")
    assert "slurm-kit[parquet]" in caught.value.hint


def test_what_was_read_once_is_kept_until_the_run_writes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged cache is read past."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "points" / "a.0" / "metrics.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text('{"loss": 3.0}\n{"loss": NaN}\n{"loss": 2.0}\n{"lo')
    read: list[Path | str] = []
    real = metrics.records

    def records(path: Path | str) -> list[json_lines.Record]:
        read.append(path)
        return real(path)

    monkeypatch.setattr(metrics, "records", records)

    def ask(reduce: run_metrics_cache.Reduce) -> dict[str, float]:
        return run_metrics_cache.read_run_numbers(tmp_path / "points", ["a.0", "a.1"], reduce=reduce)["a.0"].values

    assert (ask("last"), ask("max"), ask("min")) == ({"loss": 2.0}, {"loss": 3.0}, {"loss": 2.0})
    assert read.count(str(file.parent)) == 1
    with file.open("a") as more:
        more.write('\n{"loss": 1.0}\n')
    assert ask("last") == {"loss": 1.0}
    (kept,) = (tmp_path / "cache").rglob("results-*.json")
    for damaged in ("", "[]", '{"form": 1, "runs": {"a.0": [1]}}', kept.read_text()[:40]):
        kept.write_text(damaged)
        assert ask("last") == {"loss": 1.0}
