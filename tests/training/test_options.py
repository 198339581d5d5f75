"""Compares the options that the kit reads from a program's text with those that the program takes."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from kit.frameworks import launcher_program_options
from tests.support import REPO
from tests.training.conftest import ENV

pytestmark = [pytest.mark.timeout(240), pytest.mark.smoke]

PROGRAMS = sorted(
    str(path.relative_to(REPO / "launchers"))
    for path in REPO.glob("launchers/*/*.py")
    if "= options.parse(" in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_kit_knows_the_options_of_a_program(program: str, warm_words: list[str]) -> None:
    path = REPO / "launchers" / program
    done = subprocess.run(
        [*warm_words, sys.executable, str(path), "--help"],
        env=ENV | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    found = re.findall(r"(?m)^  (?:-h, )?(--[a-z0-9-]+)|, (--no-[a-z0-9-]+)", done.stdout)
    assert {one or other for one, other in found} == set(launcher_program_options.declared(path))
