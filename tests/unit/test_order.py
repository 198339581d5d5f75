"""tests/order.py: the order of files in `make test`."""

from __future__ import annotations

import pytest

from tests import order
from tests.support import REPO


def some(**counts: int) -> list[str]:
    """So many tests of each file; a name begins with its folder."""
    return [
        f"tests/{name.replace('_', '/test_', 1)}.py::test_{number}[a::b]"
        for name, count in counts.items()
        for number in range(count)
    ]


def test_the_longest_come_first_and_what_waits_beside_what_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "SECONDS", {"tests/cluster/test_slow.py": 90.0, "tests/unit/test_none.py": 0.0})
    given = some(unit_a=100, unit_b=200, unit_none=300, cluster_few=1, cluster_slow=2, cluster_many=5, golden_c=100)
    files = [file.removeprefix("tests/").removesuffix(".py") for file in order.in_turn(given)]
    assert [file for file in files if file.startswith("cluster")] == [
        "cluster/test_slow",
        "cluster/test_many",
        "cluster/test_few",
    ]
    assert [file for file in files if not file.startswith("cluster")] == [
        "unit/test_b", "golden/test_c", "unit/test_a", "unit/test_none"
    ]  # fmt: skip
    # Half of what computes is given out before three quarters of what waits are.
    assert files[:4] == ["cluster/test_slow", "unit/test_b", "golden/test_c", "cluster/test_many"]


def test_files_with_seconds_of_their_own_are_there() -> None:
    assert [file for file in order.SECONDS if not (REPO / file).is_file()] == []
    assert order.in_turn([]) == []
    assert order.in_turn(["README.md::line:3"]) == ["README.md"]
