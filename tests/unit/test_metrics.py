"""Reads back the metrics that a program reported, also from replica groups, and also where a line was cut off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from kit.record import metrics
from kit.schema.metrics import MetricsRecord
from kit.sweeps.run_metrics_cache import metrics_of


def outer(step: int, second: int, **more: Any) -> dict[str, Any]:
    return {
        "kind": "outer",
        "time": f"2026-01-01T00:00:{second:02}.000+00:00",
        "outer_step": step,
        "step": 10 * step,
        "quorum_id": 3,
        "groups": [0, 1],
        "averaged": 2,
        **more,
    }


def write(folder: Path, *records: dict[str, Any], cut: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records) + cut)


def test_records_of_groups_come_in_the_order_of_their_times(tmp_path: Path) -> None:
    write(tmp_path / "replica-0", outer(1, 1), outer(2, 5))
    write(tmp_path / "replica-1", outer(1, 2), outer(2, 4), cut='{"kind": "out')
    assert [record["time"][17:19] for record in metrics.records(tmp_path)] == ["01", "02", "04", "05"]


def test_a_run_without_groups_is_read_from_its_one_file(tmp_path: Path) -> None:
    write(tmp_path, {"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.5})
    write(tmp_path / "replica-0", outer(1, 1))
    assert [record["step"] for record in metrics.records(tmp_path)] == [1, 2]
    assert metrics.quorum(tmp_path) is None


def test_the_quorum_is_that_of_the_furthest_average(tmp_path: Path) -> None:
    write(tmp_path / "replica-0", outer(7, 9))
    write(tmp_path / "replica-1", outer(7, 8), outer(8, 10, groups=[1, 3], averaged=1), {"kind": "step", "step": 81})
    found = metrics.quorum(tmp_path)
    assert str(found) == "2 groups (1 3), id 3, outer step 8, step 80"


def test_a_long_file_is_read_from_its_end(tmp_path: Path) -> None:
    write(tmp_path / "replica-0", *(outer(step, step % 60) for step in range(1, 2000)))
    assert metrics.quorum(tmp_path) is not None
    assert metrics.quorum(tmp_path).outer_step == 1999  # type: ignore[union-attr]


@pytest.mark.parametrize("made", [True, False])
def test_a_run_that_has_reported_nothing(tmp_path: Path, made: bool) -> None:
    if made:
        write(tmp_path / "replica-0")
    assert metrics.records(tmp_path) == []
    assert metrics.quorum(tmp_path) is None


def test_results_of_a_sweep_see_what_groups_reported(tmp_path: Path) -> None:
    write(tmp_path / "replica-0", outer(1, 1), {"kind": "final", "time": "2026-01-01T00:01", "test_loss": 1.25})
    write(tmp_path / "replica-1", outer(1, 2))
    assert metrics_of(tmp_path)["test_loss"] == 1.25


def test_the_latest_step_has_the_newest_value_of_each_number(tmp_path: Path) -> None:
    step = {"kind": "step", "time": "2026-01-01T00:00:01.000+00:00", "restart": 0}
    write(
        tmp_path,
        {"kind": "start", "time": "2026-01-01T00:00:00.000+00:00", "schema": 1, "parameters": 9},
        {**step, "step": 10, "loss": 2.5, "tokens_per_second": 12345.6, "mfu": 0.415},
        {"kind": "eval", "time": "2026-01-01T00:00:02.000+00:00", "step": 10, "eval_loss": 2.625, "best": True},
    )
    found = metrics.latest(tmp_path)
    assert str(found) == "step 10, loss 2.5000, validation loss 2.6250, 12,346 tokens/s, MFU 41.5%"
    assert found is not None
    assert found.time.endswith("02.000+00:00")
    assert metrics_of(tmp_path) == {
        "step": 10,
        "loss": 2.5,
        "tokens_per_second": 12345.6,
        "mfu": 0.415,
        "eval_loss": 2.625,
    }


def test_a_start_from_an_earlier_checkpoint_forgets_what_was_later(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"kind": "step", "time": "1", "step": 10, "loss": 1.0},
        {"kind": "eval", "time": "2", "step": 10, "eval_loss": 1.5},
        {"kind": "resumed", "time": "3", "step": 5, "path": "step-00000005"},
        {"kind": "step", "time": "4", "step": 6, "loss": 2.0},
    )
    assert str(metrics.latest(tmp_path)) == "step 6, loss 2.0000"


def test_the_latest_of_groups_is_the_furthest(tmp_path: Path) -> None:
    write(tmp_path / "replica-0", {"kind": "step", "time": "5", "step": 8, "loss": 1.0})
    write(
        tmp_path / "replica-1", {"kind": "step", "time": "4", "step": 9, "loss": 3.0}, {"kind": "outer", "step": True}
    )
    assert str(metrics.latest(tmp_path)) == "step 9, loss 3.0000"
    assert metrics.latest(tmp_path / "nothing") is None


def test_a_record_of_the_schema_is_judged_by_its_kind() -> None:
    now = {"time": "2026-01-01T00:00:01.000+00:00", "restart": 0}
    whole = {
        **now,
        "kind": "step",
        "step": 1,
        "loss": 1.0,
        "lr": 0.1,
        "gradient_norm": 1.0,
        "memory_bytes": 5,
        "own": "x",
    }
    assert MetricsRecord.model_validate(whole).root.kind == "step"
    for wrong in ({**whole, "lr": -1}, {**whole, "kind": "leap"}, {k: v for k, v in whole.items() if k != "loss"}):
        with pytest.raises(ValidationError):
            MetricsRecord.model_validate(wrong)
