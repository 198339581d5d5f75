"""The list of runs that kit serve shows: what a row says beside its state, and what is read again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("anyio", reason="kit serve: pip install 'slurm-kit[serve]'")

from kit.hosts.status import Status
from kit.serve import glances, listing
from kit.serve.current_runs import Board
from kit.serve.glances import Glance, Glances
from tests.unit.test_reports import make
from tests.unit.test_sweep_results import write_sweep


@pytest.fixture
def board(tmp_path: Path) -> Board:
    """Two runs that failed, and a sweep of two points."""
    make(tmp_path / "runs" / "gpt-1", 16)
    make(tmp_path / "runs" / "gpt-2", 16)
    write_sweep(
        tmp_path / "runs", [({"args.--lr": lr}, [{"kind": "final", "step": 1, "loss": lr}], 0) for lr in (0.1, 0.2)]
    )
    return Board(lambda: [tmp_path / "runs"], lambda cluster: {})


def test_a_row_says_how_good_how_long_and_why(board: Board) -> None:
    rows = {row["id"]: row for row in listing.rows(board, Glances())["rows"]}
    run = rows["gpt-1"]
    assert (run["state"], run["look"], run["mark"]) == ("FAILED", "bad", "✗")
    assert "rank 3 on n0 failed first" in run["why"]
    assert run["loss"] == "not a number"
    assert run["spark"].count(",") > 1
    assert run["took"] == "30:05"
    sweep = rows["digits-1"]
    assert (sweep["state"], sweep["look"], sweep["loss"], sweep["why"]) == ("2 COMPLETED", "good", "", "")


def test_what_was_not_read_in_time_is_read_for_the_next_page(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is made again until every run is read: a list of many slow runs is shown at once."""
    monkeypatch.setattr(glances, "_READ_S", 0.0)
    read, runs = Glances(), listing.newest_runs(board)
    assert read.seen(runs)[0] == 2
    assert read.read_all(runs) == {}
    monkeypatch.setattr(glances, "_READ_S", 60.0)
    assert read.read_all(runs).keys() == {"gpt-1", "gpt-2"}
    assert read.seen(runs)[0] == 0


def test_a_run_is_read_again_only_when_its_files_grew(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    read, runs = Glances(), listing.newest_runs(board)
    assert read.read_all(runs)["gpt-1"].loss == "not a number"
    opened: list[str] = []
    whole = glances._read

    def read_and_note(run: Status) -> Glance:
        opened.append(run.run_dir.name)
        return whole(run)

    monkeypatch.setattr(glances, "_read", read_and_note)
    read.read_all(runs)
    assert opened == []
    with (runs[-1].run_dir / "metrics.jsonl").open("a") as file:
        file.write("\n" + json.dumps({"kind": "step", "step": 5000, "loss": 1.25}))
    assert read.read_all(runs)[runs[-1].run_dir.name].loss == "1.25"
    assert opened == [runs[-1].run_dir.name]
