"""warm_held.py: failed ranks start again in the step that they have, or their step sees how they ended."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support import REPO
from tests.warm import TIMEOUT_S, Warm, came

# Ranks of start 0 wait, or end as the file `end-RANK` says; those of later starts say what they have and end.
PROGRAM = """
import os, pathlib, sys, time
start, rank = os.environ["KIT_RESTART_COUNT"], os.environ["RANK"]
print(start, os.environ["MASTER_PORT"], os.environ.get("TORCHELASTIC_ERROR_FILE", "-"), flush=True)
pathlib.Path(f"up-{rank}-{start}").write_text(str(os.getpid()))
if start != "0":
    sys.exit(0)
while not (end := pathlib.Path(f"end-{rank}")).exists():
    time.sleep(0.01)
os.kill(os.getpid(), 9) if end.read_text() == "kill" else os._exit(int(end.read_text()))
"""
FAILURES = "failures-0/train-0"
CHANGES = (
    "KIT_MASTER_ADDR=n2",
    "KIT_MASTER_PORT=7001",
    "KIT_RESTART_COUNT=1",
    "KIT_ATTEMPT=1",
    "KIT_FAILURES=failures-1/train-1",
)


@pytest.fixture
def warm(tmp_path: Path) -> Iterator[Warm]:
    made = Warm(tmp_path)
    (tmp_path / "state" / FAILURES).mkdir(parents=True)
    made.env |= {"KIT_RESTART_COUNT": "0", "KIT_ATTEMPT": "0", "KIT_RUN_DIR": str(tmp_path), "KIT_FAILURES": FAILURES}
    made.env |= {"MASTER_PORT": "7000", "TORCHELASTIC_ERROR_FILE": f"{tmp_path}/state/{FAILURES}/error.json"}
    made.write(PROGRAM)
    made.serve("json", orders=True)
    yield made
    if made.process is not None:
        made.process.kill()
        made.process.wait()
        for stream in (made.process.stdin, made.process.stdout):
            assert stream is not None
            stream.close()


def two(warm: Warm, **env: str) -> list[subprocess.Popen[str]]:
    """Two ranks that run."""
    ranks = [warm.start("p.py", warm=True, out=f"out-{rank}", **{"RANK": str(rank), **env}) for rank in range(2)]
    assert sorted(warm.report() for _ in ranks) == [["forked", "0", "0"], ["forked", "0", "1"]]
    came(lambda: len(list(warm.folder.glob("up-?-0"))) == 2)
    return ranks


def end(warm: Warm, rank: int, how: str) -> None:
    """Have a rank end: by KILL, or with a code."""
    (warm.folder / "end.new").write_text(how)
    (warm.folder / "end.new").rename(warm.folder / f"end-{rank}")


def test_all_ranks_start_again_with_the_same_clients(warm: Warm) -> None:
    ranks = two(warm)
    end(warm, 1, "kill")
    assert warm.report() == ["ended", "0", "1", "killed"]
    record = (warm.folder / "state" / FAILURES / "rank-1.137.alone").read_text().split()
    assert record[1:3] == ["1", "137"], "at its own time, not when its step knows"
    warm.order("stop", "0")
    assert warm.report() == ["stopped", "0", "2"]
    assert [rank.poll() for rank in ranks] == [None, None], "their tasks live"
    assert not list((warm.folder / "state" / FAILURES).glob("rank-0.*")), "the kit ended it"
    warm.order("again", "0", *CHANGES)
    said = sorted(warm.report() for _ in range(4))
    assert said == [["done", "1", "0"], ["done", "1", "1"], ["forked", "1", "0"], ["forked", "1", "1"]]
    assert [rank.wait(TIMEOUT_S) for rank in ranks] == [0, 0]
    file = f"{warm.folder}/state/failures-1/train-1/error.json"
    for rank in range(2):
        first, second = (warm.folder / f"out-{rank}").read_text().splitlines()
        assert (first.split()[:2], second.split()) == (["0", "7000"], ["1", "7001", file])


def test_released_ranks_end_as_they_did(warm: Warm) -> None:
    first, last = two(warm)
    end(warm, 1, "7")
    assert warm.report() == ["ended", "0", "1", "failed"]
    warm.order("stop", "0")
    assert warm.report() == ["stopped", "0", "2"]
    warm.order("release", "0")
    assert (first.wait(TIMEOUT_S), last.wait(TIMEOUT_S)) == (-signal.SIGKILL, 7)


def test_without_a_stop_a_release_lets_the_others_run(warm: Warm) -> None:
    """The batch script has no use for a start in the same step: the step sees the end, as without orders."""
    first, last = two(warm)
    end(warm, 1, "7")
    assert warm.report() == ["ended", "0", "1", "failed"]
    warm.order("release", "0")
    assert warm.report() == ["done", "0", "1"]
    assert (first.poll(), last.wait(TIMEOUT_S)) == (None, 7)
    end(warm, 0, "kill")
    assert warm.report() == ["done", "0", "0"], "and of this start nothing more is held"
    assert first.wait(TIMEOUT_S) == -signal.SIGKILL


@pytest.mark.parametrize("how", ["well", "told", "once"])
def test_an_end_that_is_no_failure_is_not_held(warm: Warm, how: str) -> None:
    """A rank that ends well, ranks that were told to end, and one whose arguments change with each start."""
    caught = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        ranks = two(warm, **({"KIT_WARM_ONCE": "1"} if how == "once" else {}))
        if how == "told":
            assert warm.process is not None
            warm.process.send_signal(signal.SIGUSR1)
        end(warm, 1, "0" if how == "well" else "7")
        assert warm.report() == ["done", "0", "1"]
        assert ranks[1].wait(TIMEOUT_S) == (0 if how == "well" else 7)
    finally:
        signal.signal(signal.SIGUSR1, caught)
    for rank in ranks:
        rank.kill()
        rank.wait()


def test_a_held_rank_whose_step_is_killed_is_forgotten(warm: Warm) -> None:
    first, last = two(warm)
    end(warm, 1, "kill")
    assert warm.report() == ["ended", "0", "1", "killed"]
    last.kill()
    last.wait()
    assert warm.report() == ["done", "0", "1"]
    first.kill()
    first.wait()
    assert warm.report() == ["done", "0", "0"]
    pid = int((warm.folder / "up-0-0").read_text())
    came(lambda: not Path(f"/proc/{pid}").exists())


def test_no_rank_has_the_files_of_the_warm_process(warm: Warm) -> None:
    warm.write(
        "import os\nopen_ = [fd for fd in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{fd}')]\n"
        "print([fd for fd in open_ if int(fd) > 2])",
        "p2.py",
    )
    two(warm)
    rank = warm.start("p2.py", RANK="2")
    assert (rank.wait(TIMEOUT_S), (warm.folder / "out").read_text()) == (0, "[]\n")


def is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_two_ranks_that_die_at_once_are_both_held(warm: Warm) -> None:
    """Their ends are seen in one look: by SIGCHLD and by the links of kit_keep. The client of each is still there."""
    ranks = two(warm, KIT_KEEP="1")
    # The warm process reads the request of this client for ten seconds at most, and looks at nothing else meanwhile.
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect("\0" + warm.name)
        time.sleep(0.2)
        for rank in range(2):
            pid = int((warm.folder / f"up-{rank}-0").read_text())
            end(warm, rank, "kill")
            came(partial(is_zombie, pid))
    assert sorted(warm.report() for _ in ranks) == [["ended", "0", "0", "killed"], ["ended", "0", "1", "killed"]]
    warm.order("stop", "0")
    assert warm.report() == ["stopped", "0", "2"]
    warm.order("again", "0", *CHANGES)
    assert sorted(warm.report() for _ in ranks) == [["forked", "1", "0"], ["forked", "1", "1"]]
    assert [rank.wait(TIMEOUT_S) for rank in ranks] == [0, 0]


@pytest.mark.parametrize(("how", "waits"), [("failed", True), ("killed", False)])
def test_after_an_error_the_others_may_end_by_themselves_first(
    monkeypatch: pytest.MonkeyPatch, how: str, waits: bool
) -> None:
    """They print what they had called: `kit why` needs it after a collective that did not fit. They were killed at once."""
    monkeypatch.setattr(sys, "path", [str(REPO / "templates" / "kit_node"), *sys.path])
    held_module = import_module("warm_held")
    now = [100.0]
    killed: list[int] = []
    monkeypatch.setattr(held_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(held_module, "_kill", killed.append)
    rank = held_module.HeldRank(None, {"env": {"KIT_ATTEMPT": "0", "RANK": "1"}, "fds": []})
    rank.pid = 7
    held = held_module.Held({7: rank}, lambda _: None)
    held._order("stop", "0", how)
    assert (killed, rank.stopped) == ([], False) if waits else ([7], True)
    if waits:
        assert held.pause() == pytest.approx(0.5)
    now[0] += 0.6
    held.settle()
    assert (killed, rank.stopped) == ([7], True)
