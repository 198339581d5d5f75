#!/usr/bin/env python3
"""Counts the files of kit/ that a command enters: whoever changes the command may have to read them.

    .venv/bin/python scripts/journeys.py                   # a table
    .venv/bin/python scripts/journeys.py --files submit    # and the files of one command, in the order in which they are entered
    .venv/bin/python scripts/journeys.py --check           # make lint: refuses a journey that became longer

A file counts when a function of it is called. The commands run in a small project with a plain job, and with stand-ins for Slurm's
commands that accept every job. So the counts are of the path without errors.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import CodeType, FrameType

from kit.cli import main as run_kit

REPO = Path(__file__).parents[1]
KIT = str(REPO / "kit") + "/"

# Each with its words; {run} is the run that `submit` made.
COMMANDS = {
    "render": ("render", "job.toml"),
    "submit": ("submit", "job.toml"),
    "sweep": ("sweep", "sweep.toml"),
    "why": ("why", "{run}"),
}
# The most files. Lower a number when a change allows it.
MOST = {"render": 82, "submit": 106, "sweep": 116, "why": 50}
JOB = """
name = "journey"
launcher = "ddp"
script = "train.py"
[resources]
nodes = 2
"""
SWEEP = f"""{JOB}
[sweep]
grid = {{ "args.--lr" = [0.1, 0.2] }}
"""
CLUSTER = """
[container]
runtime = "bare"
[node]
cpus = 8
memory = "16G"
"""
STAND_INS = {
    "sbatch": "cat >/dev/null </dev/null; n=$(($(cat {0}/jobs 2>/dev/null || echo 100) + 1)); echo $n >{0}/jobs; echo $n",
    "squeue": "exit 0",
    "sacct": "exit 0",
    "scontrol": "exit 0",
    "sinfo": "exit 0",
}


def make_project(folder: Path) -> None:
    """A project with one job, one sweep, one cluster, and Slurm's commands."""
    project = folder / "project"
    (project / "clusters").mkdir(parents=True)
    (project / "clusters" / "site.toml").write_text(CLUSTER)
    (project / "job.toml").write_text(JOB)
    (project / "sweep.toml").write_text(SWEEP)
    (project / "train.py").write_text("print('trained')\n")
    # What is known of a file is used once it is older than two seconds (kit/record/known_files.py): a fast machine comes sooner.
    for path in (*project.glob("*.*"), *project.glob("clusters/*")):
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 60))
    tools = folder / "tools"
    tools.mkdir()
    for name, script in STAND_INS.items():
        (tools / name).write_text(f"#!/bin/bash\n{script.format(tools)}\n")
        (tools / name).chmod(0o755)


def entered_files(words: list[str]) -> list[str]:
    """The files of kit/ that a command enters, in this process, in order."""
    found: dict[str, None] = {}

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and is_function(frame.f_code) and frame.f_code.co_filename.startswith(KIT):
            found.setdefault(frame.f_code.co_filename.removeprefix(KIT))

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        sys.argv = ["kit", *words]
        run_kit()
    except SystemExit as end:
        if end.code not in {0, None}:
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return list(found)


def is_function(code: CodeType) -> bool:
    """Whether code is a function's: not a module's or a class's, which an import alone executes."""
    return not code.co_name.startswith("<") and bool(code.co_flags & 0x1)


def measure(name: str, folder: Path) -> list[str]:
    """The files of one command, in a new process: what an earlier command imported or kept would be left out."""
    project = folder / "project"
    # Of the submit: a sweep of the same second may come first, and it has no manifest of its own.
    runs = [path.parent.name for path in sorted(project.glob("runs/journey*/manifest.json"))] or [""]
    words = [word.format(run=runs[0]) for word in COMMANDS[name]]
    home = folder / "home"
    env = {**os.environ, "PATH": f"{folder}/tools:/usr/bin:/bin", "HOME": str(home), "KIT_CLUSTER": "site"}
    env |= {"XDG_CACHE_HOME": f"{home}/cache", "XDG_CONFIG_HOME": f"{home}/config", "XDG_DATA_HOME": f"{home}/data"}
    argv = [sys.executable, __file__, "--enter", *words]
    ran = subprocess.run(argv, cwd=project, env=env, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"kit {' '.join(words)} ended with {ran.returncode}:\n{ran.stdout}{ran.stderr}")
    return ran.stdout.split()


def main() -> None:
    """Parse the command line, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", choices=COMMANDS, help="list the files of this command")
    parser.add_argument("--check", action="store_true", help="end with 1 if a command enters more files than MOST")
    parser.add_argument("--enter", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.enter:
        with contextlib.redirect_stdout(io.StringIO()):
            found = entered_files(given.enter)
        print(*found, sep="\n")
        return
    with tempfile.TemporaryDirectory(prefix="kit-journeys-") as scratch:
        make_project(Path(scratch))
        longer = False
        for name in COMMANDS:
            found = measure(name, Path(scratch))
            print(f"{name:8}{len(found):4} of at most {MOST[name]}")
            longer |= len(found) > MOST[name]
            if given.files == name:
                print(*(f"    {path}" for path in found), sep="\n")
    if given.check and longer:
        raise SystemExit("a command enters more files of kit/ than before: see scripts/journeys.py --files NAME")


if __name__ == "__main__":
    main()
