"""What a program reported is read back, also from replica groups, and also where a line was cut off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kit.runs import metrics
from kit.sweeps.results import metrics_of


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
