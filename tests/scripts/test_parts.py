"""lib/parts.sh: the batch script calls the phases of the parts that its run has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.scripts.test_libraries import bash
from tests.support import REPO

PARTS = """KIT_PARTS=(a b)
a::begun() { echo "a $*"; return 3; }
b::begun() { echo "b $*"; }
b::held() { [[ "$1" == yes ]]; }
"""


def test_a_phase_is_called_in_each_part_that_has_it() -> None:
    assert bash(f"{PARTS}parts::call begun 'x y' z; echo $?", "parts") == ["a x y z", "b x y z", "0"]
    assert bash(f"{PARTS}parts::call closed; echo $?", "parts") == ["0"]
    assert bash(
        "KIT_PARTS=(); parts::call begun; parts::require begun; echo $?; parts::any held; echo $?", "parts"
    ) == [
        "0",
        "1",
    ]


def test_a_required_phase_ends_at_the_first_part_that_fails() -> None:
    assert bash(f"{PARTS}parts::require begun x; echo $?", "parts") == ["a x", "3"]
    assert bash(f"{PARTS}KIT_PARTS=(b a); parts::require begun x; echo $?", "parts") == ["b x", "a x", "3"]


def test_a_question_is_answered_by_the_first_part_that_says_yes() -> None:
    assert bash(f"{PARTS}parts::any held yes; echo $?; parts::any held no; echo $?", "parts") == ["0", "1"]


@pytest.mark.parametrize("path", sorted(REPO.glob("templates/parts/*/part.sh")), ids=lambda path: path.parent.name)
def test_the_variables_of_a_part_are_global(path: Path) -> None:
    """The batch script sources it in a function, where a plain `declare` makes a variable that is gone afterwards."""
    assert re.findall(r"^(?:declare|typeset) (?!-\w*[gp]).*", path.read_text(encoding="utf-8"), re.MULTILINE) == []
