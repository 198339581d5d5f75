"""Programs that report nothing: what sample-ranks.sh sees of their processes, and the alarms that the batch script makes of it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scripts.batch_lab import BIN, LIB, BatchLab

PROGRAM = """\
import os, signal, sys, threading, time
def work(kind):
    if kind == "lock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    while kind == "busy": pass
    if kind == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(4 if kind == "gone" else 600)
open(sys.argv[2], "w").close()
work(sys.argv[1])
"""
KINDS = ("sleep", "lock", "busy", "stopped", "gone")
PY_SPY = Path(sys.executable).with_name("py-spy")


def wait(ready: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.1)


def lines_of(folder: Path, tools: dict[str, str]) -> dict[str, list[dict[str, list[str]]]]:
    """The first two lines of a sampler for each PATH, while five ranks of a job run, as words by rank."""
    job = str(7_000_000 + os.getpid())
    program = folder / "program.py"
    program.write_text(PROGRAM)
    files = {name: folder / f"{name}.samples" for name in tools}
    started = list[subprocess.Popen[bytes]]()
    try:
        for rank, kind in enumerate(KINDS):
            # A rank is found by its environment alone.
            env = {"SLURM_JOB_ID": job, "KIT_RANK_SHELL": "1", "RANK": str(rank)}
            started.append(
                subprocess.Popen(
                    [sys.executable, str(program), kind, str(folder / kind)], env=env, start_new_session=True
                )
            )
        wait(lambda: all((folder / kind).exists() for kind in KINDS))
        time.sleep(0.5)
        for name, path in tools.items():
            argv = [str(BIN / "sample-ranks.sh"), str(files[name])]
            started.append(subprocess.Popen(argv, env={"PATH": path, "SLURM_JOB_ID": job}, start_new_session=True))
        wait(lambda: all(file.exists() and file.read_text().count("\n") > 1 for file in files.values()))
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return {name: [ranks_of(line) for line in file.read_text().splitlines()[:2]] for name, file in files.items()}


def ranks_of(line: str) -> dict[str, list[str]]:
    """Words after the name of each rank."""
    head, *fields, whole = line.split("\t")
    assert whole == "."
    assert head.split(" ")[1] == str(len(fields))
    return {words.split(" ")[0]: words.split(" ")[1:] for words in fields}


@pytest.mark.skipif(not PY_SPY.exists(), reason="py-spy is not installed")
def test_what_each_rank_does_is_seen_without_a_report(tmp_path: Path) -> None:
    """With py-spy, and without it: then a loop and an endless loop look alike, and only a rank that takes no CPU is stalled."""
    plain = os.pathsep.join(
        path for path in os.environ["PATH"].split(os.pathsep) if not (Path(path) / "py-spy").exists()
    )
    seen = lines_of(tmp_path, {"stacks": f"{PY_SPY.parent}{os.pathsep}{plain}", "plain": plain})
    for first, second in seen.values():
        assert {rank: words[2] for rank, words in second.items()} == {f"@{n}": kind for n, kind in enumerate(KINDS)}
        assert [second[rank][0] == first[rank][0] for rank in ("@0", "@3")] == [True, True]
    _, second = seen["stacks"]
    assert int(second["@2"][1]) >= 1
    if second["@0"][3] != "-":
        places = [second[f"@{rank}"][3] for rank in range(4)]
        assert places == [f"work(program.py:{line})" for line in (10, 6, 7, 9)]
    first, second = seen["plain"]
    assert {words[3] for words in second.values()} == {"-"}
    assert second["@2"][0] != first["@2"][0]


def loop(lab: BatchLab, script: str) -> list[str]:
    """What judge_stall makes of the samples, with the variables of stall_watch::loop."""
    shutil.copytree(LIB, lab.run_dir / "lib", dirs_exist_ok=True)
    (lab.run_dir / "monitor").mkdir(exist_ok=True)
    state = "since=100.5 seconds=0 furthest=- number=1"
    state += ' rule="" role="" rank="" node="" step="" phase="" idle="" waiting="" count="" others=""'
    clock = "unset EPOCHSECONDS; EPOCHSECONDS=1000"
    return lab.bash(f"source {LIB}/observed_ranks.sh\n{clock}\ndeclare -i begun=0 least=0\n{state}\n{script}")


def samples(lab: BatchLab, *, age: dict[str, int]) -> None:
    """Each node's file, with one rank that works, of this age in seconds."""
    (lab.run_dir / "monitor").mkdir(exist_ok=True)
    for number, (node, seconds) in enumerate(age.items()):
        path = lab.run_dir / "monitor" / f"slurm-7.{node}.samples"
        path.write_text(f"1000 1\t@{number} 999 90 busy work(a.py:1) 0\t.\n")
        at = time.time() - seconds
        os.utime(path, (at, at))


# Five seconds later.
LOOK = '((EPOCHSECONDS += 5)); rule=""; observed_ranks::judge_stall; echo "rule ${rule} ${node}"'


def test_a_dead_node_is_an_alarm_once_it_has_been_silent_for_a_while(tmp_path: Path) -> None:
    """One look may come just after the whole job was suspended."""
    lab = BatchLab(tmp_path)
    samples(lab, age={"n1": 0, "n2": 50, "n3": 3})
    said = loop(lab, f"{LOOK}\n{LOOK}\n{LOOK}\nwho=x\nobserved_ranks::say_stall")
    assert said[:3] == ["rule  ", "rule  ", "rule observed-node n2"]
    assert "node n2 gives no sign of life, for 50 s; 2 ranks are on other nodes" in said[3]


@pytest.mark.parametrize(
    ("answers", "rule"),
    [
        (["node-n1.txt", "complete"], "observed-node"),
        (["node-n1.txt", "node-n2.txt", "complete"], "observed-slow"),
        (["node-n1.txt"], "observed-slow"),
        (["complete"], "observed-slow"),
    ],
    ids=["the others answered", "it answered", "not yet", "none did"],
)
def test_a_node_is_dead_only_if_it_did_not_answer_when_the_others_did(
    tmp_path: Path, answers: list[str], rule: str
) -> None:
    """A killed collector ends nothing."""
    lab = BatchLab(tmp_path)
    samples(lab, age={"n1": 0, "n2": 50, "n3": 3})
    folder = lab.run_dir / "state" / "stall-1"
    folder.mkdir(parents=True)
    for name in answers:
        (folder / name).touch()
    said = loop(lab, f"begun=1 observed_ranks_silent_since=1 observed_ranks_alarm=observed-node\n{LOOK}")
    assert said == [f"rule {rule} n2"]


def test_nothing_is_judged_while_the_ranks_start_or_when_their_reports_gave_an_alarm(tmp_path: Path) -> None:
    lab = BatchLab(tmp_path)
    samples(lab, age={"n1": 0, "n2": 50, "n3": 3})
    said = loop(
        lab,
        f"observed_ranks_silent_since=1 since=990.5\n{LOOK}\nsince=1.5 rule=stalled-node\nobserved_ranks::judge_stall\n"
        'echo "rule ${rule}"',
    )
    assert said == ["rule  ", "rule stalled-node"]


def test_what_was_slow_and_is_a_stall_now_is_another_alarm(tmp_path: Path) -> None:
    lab = BatchLab(tmp_path)
    samples(lab, age={"n1": 0, "n2": 0, "n3": 0})
    for number, kind in (
        (0, "collective a(a.py:1) all_reduce"),
        (1, "lock b(b.py:1) futex"),
        (2, "collective a(a.py:1) all_reduce"),
    ):
        path = lab.run_dir / "monitor" / f"slurm-7.n{number + 1}.samples"
        path.write_text(f"1000 1\t@{number} 100 0 {kind}\t.\n")
    said = loop(
        lab,
        f'begun=9 observed_ranks_alarm=observed-slow\n{LOOK}\necho "${{begun}} ${{rank}} ${{phase}} ${{idle}} ${{waiting}}"',
    )
    assert said == ["rule observed-stall n2", "0 1 lock:b(b.py:1) 900 2"]


@pytest.mark.parametrize(("rule", "ends"), [("observed-stall", True), ("observed-slow", False)])
def test_an_alarm_of_something_slow_ends_nothing(tmp_path: Path, rule: str, ends: bool) -> None:
    """The loop of the stall watch for three looks, with no patience: it asks the batch script by USR2 to end the ranks."""
    lab = BatchLab(tmp_path)
    script = f"""KIT_PARTS=(observed_ranks) KIT_STALL=auto KIT_ON_STALL=end KIT_PATIENCE=0
KIT_EVIDENCE_ARGV=(true) KIT_RESTART_COUNT=0
source {LIB}/observed_ranks.sh
observed_ranks::judge_stall() {{ rule={rule} role=- rank=1 node=n2 step=0 phase=lock:b idle=130 waiting=2 count=3 others=-; }}
trap 'echo asked' USR2
sleep 6.5 | stall_watch::loop $$ 1.5
echo over"""
    said = lab.bash(script)
    assert sum("rank 1 on n2" in line for line in said) == 1
    assert ("asked" in said, said[-1]) == (ends, "over")
