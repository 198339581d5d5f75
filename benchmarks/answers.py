"""Measures what a command's answer costs in instructions: the same figure on a busy machine and on a quiet one.

    python -m benchmarks answers [--beside /path/of/another/.venv/bin/python]

Needs valgrind, but neither Slurm nor an image. The figures are multiples of the start
and end of a bare Python, beside the import of typer. --beside also measures
the kit of another checkout, for example the one before a change.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks._common import Goal, project, report
from kit import shell

JOB = 'name = "bench"\nlauncher = "ddp"\nscript = "train.py"\n[container]\nruntime = "bare"\n'
COMPLETION = {"_KIT_COMPLETE": "complete_bash", "COMP_WORDS": "kit su", "COMP_CWORD": "1"}
# As in the installed program: completion takes the name of its variable from it.
START = "import sys; sys.argv[0] = 'kit'; from kit.__main__ import main; main()"
# Typer parses each command line, so its own import is the least that a command takes.
TYPER = "`import typer`"
COMMANDS = ("--version", "completion", "status", "render --no-container", "--help", "runs")


def lacking() -> str:
    """What this machine lacks for the table; empty if nothing."""
    return "" if shutil.which("valgrind") else "valgrind is not installed (Debian: apt-get install valgrind)"


def main(words: Sequence[str] = ()) -> int:
    """Measure every command once, and print the table. Returns 2 without valgrind."""
    parser = argparse.ArgumentParser(prog="benchmarks answers")
    parser.add_argument("--beside", metavar="PYTHON")
    options = parser.parse_args(words)
    if problem := lacking():
        print(f"answers: {problem}", file=sys.stderr)
        return 2
    with project("bench", "embedded = true\n[node]\ncpus = 4\n", JOB) as folder, TemporaryDirectory() as home:
        (folder / "train.py").write_text("")
        env = {**os.environ, "XDG_CACHE_HOME": f"{home}/cache", "XDG_DATA_HOME": f"{home}/data"}
        goals = _table(folder, env, sys.executable, "kit")
        if options.beside:
            goals += _table(folder, env, options.beside, "the other kit")
    return report(goals)


def _table(folder: Path, env: dict[str, str], python: str, name: str) -> list[Goal]:
    bare = _instructions([python, "-c", "pass"], folder, env)
    goals = [Goal(name=f"bare Python for {name}", value=bare / 1e6, unit="million")]
    typer = _instructions([python, "-c", "import typer"], folder, env)
    goals.append(Goal(name=f"{TYPER} for {name} / bare Python", value=typer / bare))
    for words in COMMANDS:
        argv = [python, "-c", START, *(words.split() if words != "completion" else ())]
        cost = _instructions(argv, folder, env | (COMPLETION if words == "completion" else {}))
        goals.append(Goal(name=f"`{name} {words}` / bare Python", value=cost / bare))
    return goals


def _instructions(argv: Sequence[str], folder: Path, env: dict[str, str]) -> int:
    """Instructions of the process without its children, in a later run than the first, when all bytecode is cached."""
    shell.run(argv, cwd=folder, env=env, check=False)
    counted = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *argv]
    done = shell.run(counted, cwd=folder, env=env, check=False)
    found = re.search(r"Collected : ([0-9]+)", done.stderr)
    if found is None:
        raise SystemExit(f"answers: valgrind counted nothing of {' '.join(argv)}: {done.stderr[-300:]}")
    return int(found[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
