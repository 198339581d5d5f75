"""Tables at any width: whole columns go, ids stay whole."""

from __future__ import annotations

import pytest

from kit.cli.print_table import Column, lines

COLUMNS = (Column("run"), Column("job", 1), Column("state"), Column("submitted", 3), Column("cluster", 2))
ROWS = [["digits-of-a-very-long-name-20261122-090000-4cba", 12, "RUNNING", "2026-11-22 09:00", "infiniband"]]


@pytest.mark.parametrize(
    ("width", "heads"),
    [
        (None, "run job state submitted cluster"),
        (200, "run job state submitted cluster"),
        (80, "run job state cluster"),
        (70, "run job state"),
        (60, "run state"),
        (20, "run state"),
    ],
)
def test_columns_go_and_ids_stay(width: int | None, heads: str) -> None:
    head, row = lines(COLUMNS, ROWS, width=width)
    assert head.split() == heads.split()
    assert row.startswith(str(ROWS[0][0])), "never cut"
    assert "RUNNING" in row
    if width is not None and width > 55:
        assert len(row) <= width


def test_an_empty_table_has_its_head() -> None:
    assert [*lines(COLUMNS, [], width=None)] == ["run  job  state  submitted  cluster"]
