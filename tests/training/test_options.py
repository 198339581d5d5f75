"""What the kit reads from a program's text, so that a misspelt option never reaches the queue, is what the program itself takes."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from kit.frameworks import launcher_program_options
from tests.support import REPO

pytestmark = [pytest.mark.timeout(240), pytest.mark.smoke]

PROGRAMS = sorted(
    str(path.relative_to(REPO / "launchers"))
    for path in REPO.glob("launchers/*/*.py")
    if "= options.parse(" in path.read_text(encoding="utf-8")
)


# Torch is imported once; each program then runs in a process that begins with it, as a rank would find it.
HELP = """
import os, runpy, sys
import torch
for path in sys.argv[1:]:
    print(f"== {path}", flush=True)
    if not os.fork():
        os.chdir(os.path.dirname(path))
        sys.path[0] = os.path.dirname(path)
        sys.argv = [path, "--help"]
        runpy.run_path(path, run_name="__main__")
    if os.waitstatus_to_exitcode(os.wait()[1]):
        sys.exit(f"{path} failed")
"""


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    """Program -> what it prints of --help."""
    done = subprocess.run(
        [sys.executable, "-c", HELP, *(str(REPO / "launchers" / program) for program in PROGRAMS)],
        env={"PYTHONPATH": str(REPO / "launchers"), "PATH": "/usr/bin:/bin", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=True,
    )
    parts = re.split(r"(?m)^== .*/launchers/(.*)\n", done.stdout)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_kit_knows_the_options_of_a_program(program: str, helps: dict[str, str]) -> None:
    found = re.findall(r"(?m)^  (?:-h, )?(--[a-z0-9-]+)|, (--no-[a-z0-9-]+)", helps[program])
    assert {one or other for one, other in found} == set(
        launcher_program_options.declared(REPO / "launchers" / program)
    )
