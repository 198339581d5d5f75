"""`python -m benchmarks` with several names: a process for each, and a last table of the goals that were missed."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as benchmarks
from benchmarks import recovery, storm
from benchmarks._common import Goal, report

PROGRAM = """\
import sys
from benchmarks._common import Goal, report
sys.exit({"fast": lambda: report([Goal(name="kit / peer", value=0.5, bound=1.0), Goal(name="shown", value=3.0)]),
          "slow": lambda: report([Goal(name="kit / peer", value=2.0, bound=1.0)]),
          "broken": lambda: 1 / 0,
          "late": lambda: report([Goal(name="kit / peer", value=0.5, bound=1.0)]) or 3,
          "ends": lambda: 143}[sys.argv[-1]]())
"""


def test_the_last_table_has_the_missed_goals_of_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A benchmark that breaks does not keep the next ones from running, and is no success."""
    python = tmp_path / "python"
    (tmp_path / "program.py").write_text(PROGRAM)
    python.write_text(f'#!/bin/sh\nPYTHONPATH={Path.cwd()} exec {sys.executable} {tmp_path}/program.py "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    rows = [benchmarks._outcome(name) for name in ("broken", "slow", "late", "ends", "fast")]
    shown = [str(row).replace(f" {row.minutes:.1f} ", " M ") for row in rows]
    assert shown == [
        "| broken | M | 0 of 0 | its table is missing; ended with 1 |",
        "| slow | M | 0 of 1 | kit / peer 2 (<= 1) |",
        "| late | M | 1 of 1 | ended with 3 |",
        "| ends | M | 0 of 0 | its table is missing; ended with 143 |",
        "| fast | M | 1 of 1 |  |",
    ]
    assert [row.code for row in rows] == [1, 1, 3, 143, 0]
    assert "ZeroDivisionError" in capfd.readouterr().err


@pytest.mark.parametrize(("codes", "code"), [((0, 0), 0), ((1, 0), 1), ((0, 143), 1)])
def test_one_that_missed_a_goal_makes_the_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], codes: tuple[int, int], code: int
) -> None:
    left = list(codes)
    monkeypatch.setattr(
        benchmarks, "_outcome", lambda name: benchmarks.Outcome(name=name, code=left.pop(0), minutes=1.0, goals=())
    )
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert benchmarks.main(["answers,width"]) == code
    assert capsys.readouterr().out.count("| 1.0 |") == 2


def test_a_table_that_will_be_missing_is_named_before_the_first_benchmark(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for module in (recovery, storm):
        monkeypatch.setattr(module, "PYTHON", tmp_path / "python")
    before = list[str]()

    def outcome(name: str) -> benchmarks.Outcome:
        before.append(capsys.readouterr().err)
        return benchmarks.Outcome(name=name, code=0, minutes=1.0, goals=())

    monkeypatch.setattr(benchmarks, "_outcome", outcome)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    benchmarks.main(["width,recovery,storm"])
    said = [
        f"{name} will have no table: {tmp_path}/python is not there: make training makes it"
        for name in ("recovery", "storm")
    ]
    assert before[0].splitlines() == said
    (tmp_path / "python").touch()
    assert not [*benchmarks._without_table(["width", "recovery", "storm"])]


@pytest.mark.parametrize(
    ("words", "says"),
    [(["answers,nope"], "no such benchmark: nope"), (["answers,width", "--rounds", "3"], "options are of one")],
)
def test_names_and_options_that_do_not_fit_are_refused(
    capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert benchmarks.main(words) == 2
    assert says in capsys.readouterr().err


def test_without_a_file_for_goals_only_the_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "KIT_BENCH_GOALS" not in os.environ
    assert report([Goal(name="x", value=2.0, bound=1.0)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "| x | 2.000  | <= 1 | NO |"
