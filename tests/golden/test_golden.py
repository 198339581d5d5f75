"""The generated scripts, whole text, against the committed ones. After a meant change: `make golden`, then read the diff."""

from __future__ import annotations

import pytest

from tests.golden.cases import CASES, FOLDER, SINGLE, SINGLES, Case, Single, golden_single, scripts


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_scripts_are_the_committed_ones(case: Case) -> None:
    made = scripts(case)
    for name, text in made.items():
        path = FOLDER / case.name / name
        assert path.is_file(), f"{path} is missing: run 'make golden' and read what it writes"
        assert text == path.read_text(encoding="utf-8"), f"{case.name}/{name} differs; 'make golden' rewrites it"


@pytest.mark.parametrize("case", SINGLES, ids=lambda c: c.name)
def test_single_files_are_the_committed_ones(case: Single) -> None:
    committed = (FOLDER / case.name / SINGLE).read_text(encoding="utf-8")
    assert golden_single(case) == committed, f"{case.name} differs; 'make golden' rewrites it"


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_no_committed_file_is_left_over(case: Case) -> None:
    """A script that the case makes no more leaves tests/golden with the change that ended it."""
    folder = FOLDER / case.name
    committed = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert committed - scripts(case).keys() == set(), "'make golden' removes them"


@pytest.mark.parametrize("case", SINGLES, ids=lambda c: c.name)
def test_a_single_file_stands_alone(case: Single) -> None:
    assert [path.name for path in (FOLDER / case.name).iterdir()] == [SINGLE]


def test_no_folder_without_a_case() -> None:
    folders = {p.name for p in FOLDER.iterdir() if p.is_dir() and p.name not in {"__pycache__", "messages"}}
    assert folders == {case.name for case in (*CASES, *SINGLES)}
