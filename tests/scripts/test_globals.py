"""Shared shell state has one owner: no two files of a program write the same global name."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

from tests import laid_out
from tests.scripts.shell_writes import written

PROGRAMS = sorted(laid_out.BIN.glob("*.sh"))


def owners(program: Path) -> dict[str, set[str]]:
    """Global name -> files that write it, over a program and all that it sources."""
    libraries = re.findall(r"lib/([a-z_-]+\.sh)", program.read_text(encoding="utf-8"))
    found = defaultdict(set)
    for path in {program, *(laid_out.LIB / name for name in libraries)}:
        for name in written(path):
            found[name].add(path.name)
    return found


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_each_global_is_written_by_one_file(program: Path) -> None:
    shared = {name: sorted(files) for name, files in owners(program).items() if len(files) > 1}
    assert shared == {}


def test_what_counts_as_a_write(tmp_path: Path) -> None:
    file = tmp_path / "x.sh"
    file.write_text(
        """
declare -i counted=0
plain::run() {
    local -r mine="a b" also
    local -n there="$1"
    mine=1 also=2 there[x]=3
    shown=1 given="${mine}" command word
    plain="$(run "a b")" table["${mine}"]=2 && second+=(a b)
    ((++counted_up)) || ((x[1] == 2, set_here = 3))
    while read -r -t 5 line _; do :; done
    mapfile -t lines < <(list)
    printf -v text '%s' x
    export OUT="a" BACK
    unset "gone[x]"
    exec {fd}>file
    exec {closed}>&-
    if [[ a == b ]]; then late=1; fi
    case x in TERM) chosen=2 ;; esac
}
"""
    )
    assert written(file) == {
        *(
            "counted",
            "plain",
            "table",
            "second",
            "counted_up",
            "set_here",
            "line",
            "lines",
            "text",
            "OUT",
            "gone",
            "fd",
        ),
        *("late", "chosen"),
    }
