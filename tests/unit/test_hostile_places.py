"""Files of every sort in each place that a command reads: no command hangs, ends in a traceback or takes much memory. C15.

The places are not listed here: an audit hook of Python says which files of the project a command opens. KIT_TEST_FILES: how many
pairs of place and sort are tried, instead of 20; KIT_TEST_SEED: of the choice.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from kit.images import image_lock
from kit.submission import folder
from tests.support import REPO, make_lock, make_site, plan_of, write_job
from tests.unit.test_hostile_files import answer_of
from tests.unit.test_reports import make

HOW_MANY = int(os.environ.get("KIT_TEST_FILES", "20"))
SEED = int(os.environ.get("KIT_TEST_SEED", "1"))
# Seconds after which a command hangs: none of these takes five on a busy machine.
HANGS_S = 30
# Bytes that a command may allocate more than this process has. A reader of /dev/zero asks for more at once.
MORE = 1 << 30


# These read every file of the run or of the job, however large it is: a large one takes long, as it should.
COPY = frozenset({"export", "submit"})


def _large(path: Path) -> None:
    path.touch()
    os.truncate(path, 8 << 30)


SORTS: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a device without end": lambda path: path.symlink_to("/dev/zero"),
    "the kernel's log": lambda path: path.symlink_to("/proc/kmsg"),
    "the memory of a process": lambda path: path.symlink_to("/proc/self/mem"),
    "a terminal": lambda path: path.symlink_to("/dev/ptmx"),
    "a large file": _large,
    "not UTF-8": lambda path: path.write_bytes(b"\xff\xfe\x00"),
    "a folder": lambda path: path.mkdir(),
    "a link to itself": lambda path: path.symlink_to(path),
}
JOB = """
extends = "base.toml"
script = "train.py"
image = "own"
[resources]
nodes = 1
[slurm]
template = "batch.sh"
"""
RUN = "gpt-1"
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("render", "job.toml", "-c", "pod"), ("render", "job.toml", "-c", "pod", "--no-container"), ("runs",), ("status", RUN),
    ("why", RUN), ("time", RUN), ("top", RUN, "--once"), ("logs", RUN, "--tail", "3"), ("report", RUN, "-o", "page.html"),
    ("diff", RUN, "gpt-2"), ("results", RUN), ("rerun", RUN, "--dry-run"), ("export", RUN, "-o", "x.tar.gz"), ("nodes",),
    ("cancel", RUN), ("resume", RUN), ("images",), ("images", "own", "--sbom", "spdx"), ("images", "--doctor"),
    ("verify-image", "own"), ("verify-image", "own", "--signature", "-c", "pod"), ("prune-images", "--dry-run"),
    ("prune-snapshots", "--dry-run"), ("trust",), ("model", "--config", "config.json"), ("checkpoint-size", "checkpoint"),
    ("submit", "job.toml", "-c", "pod"), ("sweep", "job.toml", "-c", "pod", "--dry-run"), ("when", "job.toml"),
)  # fmt: skip


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a file of each sort that a job can name, two runs, and a store. No Slurm answers."""
    here = tmp_path / "project"
    (here / ".git").mkdir(parents=True)
    for name, text in {
        "job.toml": JOB,
        "base.toml": 'name = "gpt"\nlauncher = "mine"\n',
        "train.py": "print(1)\n",
        "batch.sh": "#!/bin/bash\n#SBATCH --job-name=gpt\necho hello\n",
        "config.json": '{"hidden_size": 4}',
        "checkpoint/latest": "step-1",
        "checkpoint/step-1/a.distcp": "x",
        ".kitignore": "x\n",
        ".gitignore": "y\n",
    }.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(text)
    shutil.copytree(REPO / "clusters", here / "clusters")
    shutil.copytree(REPO / "launchers/ddp", here / "launchers/mine")
    shutil.copytree(REPO / "containers/train-cpu", here / "containers/own")
    image_lock.write_lock(here / "containers/own" / image_lock.FILE, make_lock("own"))
    (here / "containers/own/image.lock.sig").write_text("x")
    for name in (RUN, "gpt-2"):
        _run(here / "runs" / name)
    monkeypatch.chdir(here)
    for name in ("cache", "config", "data", "state"):
        monkeypatch.setenv(f"XDG_{name.upper()}_HOME", str(here / "home" / name))
    monkeypatch.setenv("KIT_STORE", str(here / "store"))
    return here


def _run(run: Path) -> None:
    """A run folder with all that a submit, a batch script and monitors write."""
    make(run, 8, minutes=2)
    planned = run.parent / ".planned"
    planned.mkdir()
    folder.write_files(
        plan_of(
            write_job(planned, 'name = "gpt"\nlauncher = "ddp"\nimage = "train-cpu"\n'), site=make_site(run_dir=run)
        ),
        planned,
    )
    shutil.copytree(planned, run, dirs_exist_ok=True, copy_function=_copy_if_new)
    shutil.rmtree(planned)


def _copy_if_new(source: str, target: str) -> None:
    if not Path(target).exists():
        shutil.copy2(source, target)


def command(words: tuple[str, ...], project: Path) -> tuple[str, set[Path]]:
    """What is wrong with a command's end, empty if nothing is, and the files of the project that it opened or tried to open."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_answer, args=(words, project, theirs))
    child.start()
    theirs.close()
    if not ours.poll(HANGS_S):
        os.killpg(child.pid or 0, signal.SIGKILL)
        child.join()
        return f"no answer within {HANGS_S} s", set()
    found, opened = ours.recv()
    child.join()
    return found, {Path(path) for path in opened}


def _answer(words: tuple[str, ...], project: Path, answers: Connection) -> None:
    os.setsid()
    opened, root = set[str](), f"{project}/"

    def note(event: str, args: tuple[object, ...]) -> None:
        if event == "open" and isinstance(args[0], str | os.PathLike):
            path = os.path.abspath(os.fsdecode(args[0]))  # noqa: PTH100 - resolves no links
            if path.startswith(root):
                opened.add(path)

    sys.addaudithook(note)
    # Of what can be written alone: the engine that draws charts reserves addresses of a terabyte.
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + MORE, used + MORE))
    _, found = answer_of(*words)
    answers.send((found, opened))


def put(place: Path, sort: str) -> None:
    """A file of this sort instead of what is there."""
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    SORTS[sort](place)


@pytest.mark.timeout(0)
def test_c15_no_file_in_any_place_hangs_a_command(project: Path) -> None:
    good = project.with_name("good")
    shutil.copytree(project, good, symlinks=True)
    places = dict[Path, list[tuple[str, ...]]]()
    for words in COMMANDS:
        found, opened = command(words, project)
        assert found == "", (words, found)
        for path in opened:
            # What a command writes in its own folders is not looked at again.
            if path.parent.is_dir() and not path.is_relative_to(project / "home"):
                places.setdefault(path.relative_to(project), []).append(words)
    assert len(places) > 40, sorted(places)
    every = [(place, sort) for place in sorted(places) for sort in SORTS]
    choice, wrong = random.Random(SEED), list[str]()
    for place, sort in choice.sample(every, min(HOW_MANY, len(every))):
        shutil.rmtree(project)
        shutil.copytree(good, project, symlinks=True)
        os.chdir(project)
        (project / place).parent.mkdir(parents=True, exist_ok=True)
        put(project / place, sort)
        asked = [words for words in places[place] if sort != "a large file" or words[0] not in COPY]
        if not asked:
            continue
        words = choice.choice(asked)
        if found := command(words, project)[0]:
            wrong.append(f"{sort} as {place}: kit {' '.join(words)}\n{found}")
    assert wrong == [], "\n\n".join(wrong)
