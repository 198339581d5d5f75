"""Signals: to the batch script, from there to the programs of the ranks and to nothing else, and how long these have to save."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from kit import shell
from kit.health.run_record import Record
from kit.hosts.status import Status
from tests.scripts.batch_lab import BIN, LIB, BatchLab
from tests.terminal import terminal

# A program with a child of its own, as a DataLoader's worker is one: it saves on TERM, and dies when its child was told to.
PROGRAM = """
import os, pathlib, signal, subprocess, sys, time
folder = pathlib.Path(sys.argv[1])
worker = subprocess.Popen(["sleep", "60"])
def save(number, frame):
    # A signal to all processes reaches this one first.
    time.sleep(0.5)
    ended = worker.poll()
    worker.kill()
    (folder / "saved").write_text(f"{number} {ended}")
    sys.exit(0)
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, save)
(folder / "up").touch()
while True:
    time.sleep(0.05)
"""
JOB_ID = str(4_000_000 + os.getpid())


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder whose program saves on a signal."""
    for name in ("logs", "state", "bin"):
        (tmp_path / name).mkdir()
    (tmp_path / "lib").symlink_to(LIB)
    (tmp_path / "bin" / "rank.sh").write_text((BIN / "rank.sh").read_text())
    (tmp_path / "bin" / "rank.sh").chmod(0o755)
    (tmp_path / "program.py").write_text(PROGRAM)
    program = f"({sys.executable} {tmp_path}/program.py {tmp_path})"
    (tmp_path / "program.sh").write_text(f"KIT_PROGRAM={program}\nKIT_PROGRAM_ENV=()\n")
    return tmp_path


def rank(run: Path, **more: str) -> subprocess.Popen[bytes]:
    """A rank, as worker.sh starts it."""
    env = {
        **{
            "PATH": os.environ["PATH"],
            "SLURM_JOB_ID": JOB_ID,
            "RANK": "0",
            "WORLD_SIZE": "1",
            "LOCAL_RANK": "0",
            "NODE_RANK": "0",
        },
        **{"KIT_FAILURES": ".", "KIT_RESTART_COUNT": "0", "KIT_PROGRAM_FILE": "program.sh", **more},
    }
    return subprocess.Popen([str(run / "bin" / "rank.sh")], env=env, start_new_session=True)


@pytest.fixture
def teller() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that the test started; whatever it leaves of them is ended."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            # With the program that a rank's shell has started.
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def tell(name: str, seconds: int = 90) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["bash", str(BIN / "signal.sh"), name, str(seconds)],
        env={"PATH": os.environ["PATH"], "SLURM_JOB_ID": JOB_ID},
        start_new_session=True,
    )


def until(path: Path) -> str:
    end = time.monotonic() + 60
    while not path.exists() or not path.read_text():
        assert time.monotonic() < end, f"{path.name} did not come"
        time.sleep(0.02)
    return path.read_text()


@pytest.mark.parametrize("with_step", [False, True])
def test_a_rank_that_was_killed_alone_is_on_record_as_such(
    run: Path, teller: list[subprocess.Popen[bytes]], with_step: bool
) -> None:
    """Slurm kills the program, and then its shell: the record that the shell has just written has its cause elsewhere."""
    (run / "program.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    (run / "slow").mkdir()
    (run / "slow" / "sleep").write_text("#!/bin/bash\nexec /bin/sleep 600\n")
    (run / "slow" / "sleep").chmod(0o755)
    first = f"{run}/slow:" if with_step else ""
    teller.append(process := rank(run, PATH=f"{first}{os.environ['PATH']}"))
    if with_step:
        until(run / "state" / "rank-0.137")
        process.kill()
    assert process.wait(60) == (-9 if with_step else 137)
    assert [path.name for path in (run / "state").glob("rank-*")] == ["rank-0.137" if with_step else "rank-0.137.alone"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_ranks_log_has_no_source_of_the_kits_shell(
    run: Path, teller: list[subprocess.Popen[bytes]], number: signal.Signals
) -> None:
    """bash says of a program that a signal ended `rank.sh: line 91: 11 Killed ( [[ -z "${pipe}" ]] ...`, or `Terminated`."""
    (run / "program.py").write_text(
        f"import os, sys\nprint('own', file=sys.stderr, flush=True)\nos.kill(os.getpid(), {number:d})\n"
    )
    teller.append(process := rank(run))
    assert process.wait(60) == 128 + number
    stamped, own, ended = (run / "logs" / "rank-0.log").read_text().splitlines()
    assert "rank 0 of 1" in stamped
    assert own == "own", "the program's own stderr is there"
    assert ended.endswith(f"the program ended with {128 + number}, as by the signal {number.name.removeprefix('SIG')}")


def test_a_service_that_is_told_to_end_leaves_no_word_of_a_shell(
    run: Path, teller: list[subprocess.Popen[bytes]]
) -> None:
    (run / "program.py").write_text(
        f"import pathlib, time\npathlib.Path({str(run)!r}, 'up').write_text('up')\ntime.sleep(60)\n"
    )
    teller.append(process := rank(run))
    until(run / "up")
    os.killpg(process.pid, signal.SIGTERM)
    process.wait(60)
    assert len((run / "logs" / "rank-0.log").read_text().splitlines()) == 1


INTERRUPTED = """
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
# As srun does it: a SIGINT that its shell ignores, it waits for all the same.
signal.signal(signal.SIGINT, lambda *_: (folder / "interrupted").touch())
(folder / "up").touch()
while not (folder / "finish").exists():
    time.sleep(0.05)
(folder / "ended").touch()
"""


def test_ctrl_c_of_a_terminal_is_the_scripts_and_not_that_of_srun(lab: BatchLab) -> None:
    """srun takes a second Ctrl-C within a second for its own: it interrupts the ranks, and the collectors of their reports."""
    folder = lab.run_dir
    program = folder / "interrupted.py"
    program.write_text(INTERRUPTED)
    argv, env = lab.script(
        f"""
        trap 'echo got INT' INT
        steps::start kit-1 srun {sys.executable} {program} {folder}
        until [[ -e {folder}/ended ]]; do sleep 0.1; done
        """
    )
    with terminal(argv, cwd=folder, env=env) as screen:
        end = time.monotonic() + 60
        while not (folder / "up").exists():
            assert time.monotonic() < end, screen.seen
            time.sleep(0.05)
        for count in (1, 2):
            # bash forgets one that comes just when a command of its own ends by itself: whoever types it types it again.
            while screen.seen.count("got INT") < count:
                assert time.monotonic() < end, screen.seen
                screen.type("\x03")
                with contextlib.suppress(AssertionError):
                    screen.expect("(?!)", seconds=1)
        (folder / "finish").touch()
        assert screen.code() == 0
    assert not (folder / "interrupted").exists()


def test_evidence_that_is_not_finished_goes_with_the_job(lab: BatchLab) -> None:
    """A job may end while its evidence of a stall is gathered."""
    folder = lab.run_dir / "state" / "stall-1"
    (folder / "actors").mkdir(parents=True)
    for name in ("rank-0.txt", "rank-1.txt.new", "actors/rank-0.txt.new"):
        (folder / name).touch()
    lab.command("squeue", '[[ -e "${0%/*}/gone" ]] || echo "7.5 kit-evidence"')
    lab.command("scancel", 'touch "${0%/*}/gone"')
    lab.bash("stall_watch::stopped")
    assert [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()] == ["rank-0.txt"]
    assert lab.calls("scancel") == ["scancel --signal=KILL 7.5"]


@pytest.mark.parametrize("name", ["TERM", "USR1"])
def test_a6_a_signal_reaches_the_program_and_not_its_workers(
    run: Path, teller: list[subprocess.Popen[bytes]], name: str
) -> None:
    process = rank(run)
    teller.append(process)
    end = time.monotonic() + 60
    while not (run / "up").exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    teller.append(tell(name))
    assert until(run / "saved") == f"{int(signal.Signals[f'SIG{name}'])} None", "its worker was alive when it saved"
    assert process.wait(60) == 0
    assert teller[-1].wait(60) == 0, "nothing is left to tell"


def test_a23_a_signal_that_comes_before_the_program_is_delivered_once_it_runs(
    run: Path, teller: list[subprocess.Popen[bytes]]
) -> None:
    teller.append(tell("TERM"))
    slow = f"(bash -c 'sleep 1; exec {sys.executable} {run}/program.py {run}')"
    (run / "program.sh").write_text(f"KIT_PROGRAM={slow}\nKIT_PROGRAM_ENV=()\n")
    process = rank(run)
    teller.append(process)
    assert until(run / "saved") == f"{int(signal.SIGTERM)} None"
    assert process.wait(60) == 0


# What an import from a cold file system looks like: reads, for longer than a program without a handler is waited for.
LOADS = """
import time
for _ in range(7 * 5):
    time.sleep(0.2)
    open("/proc/version").read()
"""


def test_a23_a_program_that_still_loads_gets_its_signal_once_it_has_a_handler(
    run: Path, teller: list[subprocess.Popen[bytes]]
) -> None:
    (run / "program.py").write_text(LOADS + PROGRAM)
    process = rank(run)
    teller += [process, tell("USR1")]
    assert until(run / "saved") == f"{int(signal.SIGUSR1)} None"
    assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("program", "seconds"),
    [("import time; time.sleep(600)", 600), ("while True: open('/proc/version').read()", 4)],
    ids=["has-come-up", "loads-for-ever"],
)
def test_a23_a_program_without_a_handler_is_told_all_the_same(
    run: Path, teller: list[subprocess.Popen[bytes]], program: str, seconds: int
) -> None:
    (run / "program.py").write_text(program)
    process = rank(run)
    teller += [process, tell("TERM", seconds)]
    process.wait(60)
    assert (run / "state" / "rank-0.143").exists()


# Sets a handler for each signal that is named, and writes which one came.
CATCHES = """
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
def save(number, frame):
    (folder / "saved").write_text(signal.Signals(number).name)
    sys.exit(128 + number)
for name in {names}:
    signal.signal(signal.Signals[name], save)
(folder / "up").write_text("up")
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("caught", "came"),
    [
        (["SIGUSR1"], "SIGUSR1"),
        (["SIGTERM"], "SIGTERM"),
        (["SIGTERM", "SIGUSR1"], "SIGUSR1"),
        (["SIGUSR2", "SIGTERM"], "SIGTERM"),
    ],
    ids=" ".join,
)
def test_at_the_lead_a_program_gets_the_first_signal_that_it_has_a_handler_for(
    run: Path, teller: list[subprocess.Popen[bytes]], caught: list[str], came: str
) -> None:
    """USR1 killed a program that saves on TERM alone, as most do that know no kit."""
    (run / "program.py").write_text(CATCHES.format(names=caught))
    process = rank(run)
    teller.append(process)
    assert until(run / "up")
    teller.append(tell("USR1,TERM", 4))
    assert until(run / "saved") == came
    process.wait(60)
    assert (run / "state" / f"rank-0.{128 + signal.Signals[came]}").exists()


def test_at_the_lead_a_program_without_a_handler_gets_term(run: Path, teller: list[subprocess.Popen[bytes]]) -> None:
    (run / "program.py").write_text("import time; time.sleep(600)")
    process = rank(run)
    teller += [process, tell("USR1,TERM", 600)]
    process.wait(60)
    assert (run / "state" / "rank-0.143").exists()


@pytest.mark.parametrize(
    ("signals", "came", "carried"),
    [("USR1,TERM", "USR1", "USR1,TERM"), ("USR2", "USR1", "USR2"), ("USR2", "TERM", "TERM")],
)
def test_the_jobs_signal_is_that_of_the_lead_alone(lab: BatchLab, signals: str, came: str, carried: str) -> None:
    script = f"""
roles::running() {{ return 0; }}
retry::time_to_save() {{ echo 9; }}
signals::carry() {{ echo "carry $*"; }}
readonly KIT_LEAD_SIGNALS={signals}
signals::trap
kill -{came} $$
"""
    assert [line for line in lab.bash(script) if line.startswith("carry")] == [f"carry {carried} 9"]


def test_a6_a_service_gets_no_signal(run: Path, teller: list[subprocess.Popen[bytes]]) -> None:
    teller += [rank(run, KIT_SERVICE="1"), tell("TERM")]
    time.sleep(1.2)
    assert teller[1].poll() is None
    assert not (run / "saved").exists()


def events(lab: BatchLab) -> list[str]:
    return [json.loads(line)["event"] for line in (lab.run_dir / "state" / "events.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", ["HUP", "QUIT", "TERM"])
def test_a15_hup_and_quit_are_taken_as_term(lab: BatchLab, name: str) -> None:
    """Left alone, HUP ends the script with an `end 0` on record, and a chain continues as if the run were done."""
    said = lab.bash(f'signals::trap; kill -{name} $$; echo "got ${{signals_got}}"')
    assert said[-1] == "got TERM"
    assert events(lab) == ["signal"]


@pytest.mark.parametrize(("first", "second", "counts"), [("TERM", "USR1", "TERM"), ("USR1", "TERM", "TERM")])
def test_a_request_to_end_outweighs_the_lead_signal(lab: BatchLab, first: str, second: str, counts: str) -> None:
    """A lead signal that comes while the job ends, or just before a TERM, would put a cancelled job back into the queue."""
    said = lab.bash(f'signals::trap; kill -{first} $$; kill -{second} $$; echo "got ${{signals_got}}"')
    assert said[-1] == f"got {counts}"


def test_a_term_in_the_middle_of_the_lead_signal_sets_the_time(lab: BatchLab) -> None:
    """The handler of USR1 continued after that of TERM, and gave the ranks the time of the lead."""
    script = """
roles::running() { return 0; }
retry::time_to_save() { [[ "$1" != USR1 ]] || kill -TERM "$$"; [[ "$1" == USR1 ]] && echo 600 || echo 9; }
signals::carry() { echo "carry $*"; }
signals::trap
kill -USR1 $$
echo "got ${signals_got}, within $((steps_deadline - EPOCHSECONDS))"
"""
    *said, last = lab.bash(script)
    assert last in {"got TERM, within 9", "got TERM, within 8"}
    assert [line for line in said if line.startswith("carry")] == ["carry TERM 9"]


def test_a_term_while_the_nodes_are_looked_at_ends_no_stalled_step(lab: BatchLab) -> None:
    """It is ended at the deadline of the signal instead, with time to save."""
    stubs = "nodes::look() { kill -TERM $$; sleep 0.1; }; KIT_PARTS=(stall_watch); stall_watch::trouble() { echo doomed; }\n"
    stubs += "signals::pass_on() { signals_got=$1; }\n"
    said = lab.bash(f'{stubs}KIT_OUTLIVES=1; signals::trap; kill -USR2 $$; sleep 0.1; echo "got ${{signals_got}}"')
    assert said == ["got TERM"]


def test_a13_a_cancelled_program_has_the_time_that_the_job_says(lab: BatchLab) -> None:
    """Not KillWait - 5: Slurm was not told of anything."""
    lab.command("scontrol", 'echo "KillWait = 10 sec"')
    assert lab.bash("retry::time_to_save TERM")[-1] == "90"
    assert lab.bash("signals_slurms_term=1; retry::time_to_save TERM")[-1] == "5"


# Ranks that run, and what the script does once the signal is there. A child of the script ignores TERM, as while the script ends.
TOLD = """
roles::running() { return 0; }
signals::carry() { echo "carry $*"; }
signals::trap
kill -TERM $$
"""


def test_a_term_is_taken_for_slurms_own_until_slurm_answers(lab: BatchLab) -> None:
    """A squeue that hung held the deadline of the ranks back, until Slurm killed the script."""
    lab.command("scontrol", "exec sleep 60")
    lab.command("squeue", '[[ -e "${0%/*}/answers" ]] || exec sleep 60; echo RUNNING')
    script = f"""
{TOLD.replace("kill", "came=$EPOCHSECONDS; kill")}
echo "slurms ${{signals_slurms_term}}, killed $((slurm_killed_at - came >= 30)), in time $((steps_deadline - came <= 26))"
signals::ask_again
echo "slurms ${{signals_slurms_term}}"
touch "{lab.programs}/answers"
signals::ask_again; signals::ask_again
echo "slurms ${{signals_slurms_term:-no more}}, within $((steps_deadline - EPOCHSECONDS > 80))"
"""
    assert [line for line in lab.bash(script) if line.startswith(("slurms", "carry"))] == [
        "slurms 1, killed 1, in time 1",
        "slurms 1",
        "carry TERM 90",
        "slurms no more, within 1",
    ]


@pytest.mark.parametrize(("state", "carried", "limit"), [("RUNNING", True, "0"), ("COMPLETING", False, "1")])
def test_only_slurms_own_term_limits_the_questions(lab: BatchLab, state: str, carried: bool, limit: str) -> None:
    lab.command("squeue", f"echo {state}")
    said = lab.bash(f'{TOLD}\necho "limit $((slurm_killed_at > 0))"')
    assert (any(line.startswith("carry") for line in said), said[-1]) == (carried, f"limit {limit}")


@pytest.mark.parametrize(("seconds", "code"), [(2, "137"), (60, "3")])
def test_a_question_has_the_time_that_is_left(lab: BatchLab, seconds: int, code: str) -> None:
    lab.command("scontrol", "sleep 4; exit 3")
    script = f"trap '' TERM\nslurm_killed_at=$((EPOCHSECONDS + {seconds})); slurm::ask scontrol show job; echo $?"
    assert lab.bash(script)[-1] == code


WAITS = """
steps::start a srun true
sleep 0.3
pid="${steps_pid[a]}"
"""


@pytest.mark.parametrize("deaf", [False, True], ids=["hears TERM", "deaf"])
def test_an_srun_that_waits_for_nodes_is_gone_within_seconds(lab: BatchLab, deaf: bool) -> None:
    """Slurm has no step of it that a signal could go to, and its TERM came three seconds late, its KILL ten."""
    on_term = "''" if deaf else "-"
    lab.command("srun", f"trap {on_term} TERM; for ((i = 0; i < 300; i++)); do sleep 0.1; done")
    script = f"""{WAITS}
began="${{EPOCHREALTIME/,/.}}"
steps::doom a "it has to go"
until steps::ended a; do steps::enforce_deadline a; steps::pause a; done
awk -v began="$began" -v now="${{EPOCHREALTIME/,/.}}" 'BEGIN {{ print (now - began < 6 ? "soon" : "late " now - began) }}'
"""
    assert lab.bash(script)[-1] == "soon"
    calls = [line for line in lab.calls("squeue") if "--steps" in line]
    assert calls, "whether it waits is Slurm's to say"


def test_an_srun_whose_step_has_come_up_is_not_taken_for_one_that_waits(lab: BatchLab) -> None:
    """A TERM to srun would kill its tasks; they get the KILL of their step, and srun three seconds to say how they ended."""
    lab.say("steps", "7.0 a\n")
    lab.command(
        "srun",
        "trap 'echo termed >\"${0%/*}/termed\"; exit 1' TERM; for ((i = 0; i < 15; i++)); do sleep 0.1; done; exit 9",
    )
    script = f"""{WAITS}
steps::doom a "it has to go"
until steps::ended a; do steps::enforce_deadline a; steps::pause a; done
echo "code ${{steps_code}}"
"""
    assert lab.bash(script)[-1] == "code 9"
    assert not (lab.programs / "termed").exists()
    assert lab.calls("scancel")[0] == "scancel --signal=KILL 7.0"


def test_at_the_end_an_srun_that_waits_for_nodes_is_killed_after_two_seconds(lab: BatchLab) -> None:
    lab.command("srun", "trap '' TERM; for ((i = 0; i < 300; i++)); do sleep 0.1; done")
    script = f"""{WAITS}
began="${{EPOCHREALTIME/,/.}}"
steps::end_all
awk -v began="$began" -v now="${{EPOCHREALTIME/,/.}}" 'BEGIN {{ print (now - began < 6 ? "soon" : "late " now - began) }}'
"""
    assert lab.bash(script)[-1] == "soon"


def test_p2_a_killed_step_prints_no_source(lab: BatchLab) -> None:
    lab.command("srun", "exec sleep 30")
    script = """
steps::start a srun true
sleep 0.3; kill -KILL "${steps_pid[a]}"
until steps::ended a; do sleep 0.05; done
echo "code ${steps_code}"
"""
    *said, code = lab.bash(script)
    assert code == "code 137"
    assert len(said) <= 1 and not any("local" in line or "exec" in line for line in said)


def test_p2_the_scrub_takes_away_what_srun_would_read(lab: BatchLab) -> None:
    given = {
        "SLURM_CPU_BIND": "cores",
        "SLURM_DISTRIBUTION": "cyclic",
        "SLURM_EXACT": "1",
        "SLURM_HINT": "nomultithread",
    }
    said = lab.bash('environment::scrub; compgen -e | grep "^SLURM_" | sort', **given)
    assert said == ["SLURM_JOB_ID", "SLURM_JOB_NODELIST"]


@pytest.fixture
def lab(tmp_path: Path) -> BatchLab:
    return BatchLab(tmp_path)


def test_a16_a_stale_listing_does_not_hide_a_failure(lab: BatchLab) -> None:
    """NFS shows a folder as it was until the client changes it: `compgen` here reads a listing that only a change renews."""
    stale = """
KIT_RESTART_COUNT=0
folder="$(failures::folder a-0)"; mkdir -p "${folder}"; echo "1.0 3 7 n2 a" >"${folder}/rank-3.7"
compgen() { [[ ! -e "${folder}.changed" ]] || builtin compgen "$@"; }
rm() { touch "${folder}.changed"; command rm "$@"; }
failures::any a-0 && echo seen; failures::first a-0
"""
    assert lab.bash(stale) == ["seen", "1.0 3 7 n2 a"]


def test_p2_on_a_full_disk_the_name_of_the_record_says_the_code(lab: BatchLab) -> None:
    """A file can be made where nothing can be written to it."""
    script = (
        'failures::prepare a-0; : >"$(failures::folder a-0)/rank-1.137"; failures::first a-0; failures::code_of a-0 1'
    )
    first, code = lab.bash("KIT_RESTART_COUNT=0\n" + script)
    assert first.split()[1:3] == ["1", "137"]
    assert code == "137"


@pytest.mark.parametrize(
    ("records", "first"),
    [
        # The clock of n1 is 3 s behind n2's. Rank 0 lost its connection to rank 1.
        (["100.000 0 1 n1", "103.000 1 137.alone n2"], "1 137"),
        (["100.000 0 134 n1", "100.020 1 137.alone n2"], "1 137"),
        (["100.000 0 1 n1", "100.010 2 1 n1", "100.020 1 137.alone n2", "100.030 3 137.alone n2"], "1 137"),
        # Slurm killed the step of rank 0 because n2 was lost.
        (["100.000 0 137 n1", "100.020 1 137.alone n2"], "1 137"),
        # The program failed, and Slurm killed its step.
        (["100.000 0 1 n1", "100.020 1 137 n2"], "0 1"),
        # Long after the program's own fault, another rank is killed.
        (["100.000 0 1 n1", "110.000 1 137.alone n2"], "0 1"),
        # The program chose its code.
        (["100.000 0 7 n1", "100.020 1 137.alone n2"], "0 7"),
        (["100.000 1 137.alone n2", "100.010 0 1 n1"], "1 137"),
    ],
)
def test_a_rank_that_was_killed_alone_failed_first_whatever_the_clocks_say(
    lab: BatchLab, records: list[str], first: str
) -> None:
    """With 1, the code of the rank that lost its connection, the ranks were not started again."""
    script = ["failures::prepare a-0", 'folder="$(failures::folder a-0)"']
    for at, rank, code, node in map(str.split, records):
        script.append(f'echo "{at} {rank} {code.partition(".")[0]} {node} " >"${{folder}}/rank-{rank}.{code}"')
    script += [
        'failures::first a-0 | cut -d" " -f2-3',
        "failures::code_of a-0 9; echo",
        "failures::sorted ${folder} | wc -l",
    ]
    said = lab.bash("KIT_RESTART_COUNT=0\n" + "\n".join(script))
    assert said == [first, first.split()[1], str(len(records))]
    found = Record(status=cast("Status", SimpleNamespace(run_dir=lab.run_dir))).failed[0]
    assert f"{found.rank} {found.code}" == first, "kit why has the same rule"


KILLED = "srun: error: n2: task 1: Killed\n"
TERMINATING = "srun: launch/slurm: _step_signal: Terminating StepId=7.1\n"


@pytest.mark.parametrize(
    ("said", "records", "first"),
    [
        # The rank's shell was killed, too. srun ended the others, and these recorded it.
        (KILLED + TERMINATING, ["100.000 0 143 n1", "100.010 3 138 n2"], "1 137 n2"),
        ("srun: error: n2: tasks 1,3: Out Of Memory\n", ["100.000 0 143 n1"], "1 137 n2"),
        # A peer lost its connection before srun knew.
        (KILLED, ["100.000 0 1 n1"], "1 137 n2"),
        (KILLED, [], "1 137 n2"),
        # The rank recorded it itself.
        (KILLED, ["100.500 0 143 n1", "100.000 1 137.alone n2"], "1 137 n2"),
        # Another end came first; Slurm killed the rest of the step after its KillWait.
        ("srun: error: n1: task 0: Exited with exit code 1\n" + TERMINATING + KILLED, ["100.000 0 1 n1"], "0 1 n1"),
        # srun lost a node whose slurmstepd was killed, and then killed the healthy ranks of the other.
        (
            "srun: error: Aborting, io error and missing step on node 1\nsrun: Job step aborted: Waiting up to 12 seconds\n"
            "srun: error: n1: tasks 0-1: Killed\n",
            ["100.000 2 137.alone n2"],
            "2 137 n2",
        ),
        # srun says nothing of it, or its words go to a terminal: a rank that was told to end is not to blame.
        (TERMINATING, ["100.000 0 143 n1", "100.010 2 138 n2"], ""),
        (TERMINATING, ["100.000 0 7 n1"], "0 7 n1"),
    ],
)
def test_of_a_rank_that_was_killed_with_its_shell_srun_tells(
    lab: BatchLab, said: str, records: list[str], first: str
) -> None:
    """It recorded nothing, and a healthy rank that was told to end was taken for the first."""
    output = lab.run_dir / "batch.log"
    script = [f'exec 2>"{output}"', 'echo "srun: error: n1: task 2: Killed" >&2', "failures::note_output train"]
    script += ["failures::prepare train-0", 'folder="$(failures::folder train-0)"']
    for at, rank, code, node in map(str.split, records):
        script.append(f'echo "{at} {rank} {code.partition(".")[0]} {node} " >"${{folder}}/rank-{rank}.{code}"')
    script += [f"printf %s '{said}' >&2", "failures::find_killed train-0 train 137 2 4 4 ''"]
    told = lab.bash("KIT_RESTART_COUNT=0\n" + "\n".join(script) + '\nfailures::first train-0 | cut -d" " -f2-4')
    assert told == ([first] if first else [])
    found = Record(status=cast("Status", SimpleNamespace(run_dir=lab.run_dir))).failed
    assert [f"{one.rank} {one.code} {one.node}" for one in found[:1]] == told, "kit why reads the same"


@pytest.mark.parametrize(("moved", "rank"), [("", 4), ("1 0", 0)])
def test_of_torchruns_task_its_first_rank_is_named(lab: BatchLab, moved: str, rank: int) -> None:
    """moved: the nodes' places in the numbers of ranks, by `kit rerun --rotate`."""
    script = f"""
KIT_RESTART_COUNT=0 KIT_NODE_RANKS="{moved}"
exec 2>{lab.run_dir}/batch.log
failures::prepare a-0; failures::note_output a
echo 'srun: error: n2: task 1: Killed' >&2
failures::find_killed a-0 a 137 2 8 2 a
failures::first a-0 | cut -d" " -f2-
"""
    assert lab.bash(script) == [f"{rank} 137 n2 a"]


def test_the_launchers_words_become_one_file_for_each_role(lab: BatchLab) -> None:
    logs = lab.run_dir / "logs"
    (logs / "a").mkdir()
    for name, text in {
        "task-0": "",
        "task-2": "two\n",
        "task-10": "ten\nmore\n",
        "a/task-0": "of a\n",
        "rank-0": "r\n",
    }.items():
        (logs / f"{name}.log").write_text(text)
    (logs / "a" / "task-1.log").write_text("x" * 65537)
    lab.bash(f"source {LIB}/task_logs.sh; task_logs::merge; task_logs::merge")
    assert sorted(str(p.relative_to(logs)) for p in logs.rglob("*.log")) == [
        "a/task-1.log",
        "a/task.log",
        "rank-0.log",
        "task.log",
    ]
    assert (logs / "task.log").read_text() == "task-2: two\ntask-10: ten\ntask-10: more\n"
    assert (logs / "a" / "task.log").read_text() == "task-0: of a\n"


def test_of_many_launchers_only_the_first_that_said_something_are_shown(lab: BatchLab) -> None:
    for task in range(20):
        (lab.run_dir / "logs" / f"task-{task}.log").write_text(f"task {task}\n" if task % 2 else "")
    said = lab.bash('failures::show "*" 1 ""')
    assert [line for line in said if line.startswith("  | task")] == [f"  | task {task}" for task in (1, 3, 5, 7)]


def test_p2_an_error_without_a_role_has_no_hole_in_it(lab: BatchLab) -> None:
    said = lab.bash('failures::show "*" 137 ""')
    assert any("error: the ranks ended with 137, and no rank recorded why" in line for line in said)


def test_chain_255_is_a_code_of_the_programs_own(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "events.jsonl").write_text('{"event": "end", "exit_code": "255"}\n')
    (tmp_path / "state" / "links").write_text("1\n")
    script = f"KIT_RUN_DIR={tmp_path}; source {LIB}/log.sh; source {LIB}/chain.sh; chain::require_more; echo on"
    done = shell.run(["bash", "-c", script], env={"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "1"}, check=False)
    assert done.returncode == 255


@pytest.mark.parametrize("signal_name", ["USR1", "TERM"])
def test_ranks_that_a_signal_found_waiting_are_no_good_end(lab: BatchLab, signal_name: str) -> None:
    """A lighthouse that is not ready yet: its replicas were never started, and the job ended with 0, as if it were done."""
    script = f"""
KIT_STEPS=2
KIT_STEP_0=([name]=lighthouse [folder]=roles/l [variable]=L [policy]=service [first]=0 [nodes]=1 [ranks]=1 [ports]= [after]=
    [ready]="tcp 1" [ready_timeout]=60 [restart]=0 [least]=1 [health]=)
KIT_STEP_1=([name]=group [folder]=roles/g [variable]=G [policy]=replica [first]=1 [nodes]=1 [ranks]=1 [ports]= [after]=lighthouse
    [ready]= [restart]=0 [least]=1 [health]=)
KIT_STEP_0_ARGV=(srun sleep 30)
declare -A KIT_ROLE_L=([address]=n1 [master]=1) KIT_ROLE_G=([address]=n2 [master]=1) endpoints_nodes=([lighthouse]=n1 [group]=n2)
job_roles::answers() {{ return 1; }}
KIT_RESTART_COUNT=0
signals::trap
(sleep 1; kill -{signal_name} $$) &
roles::run; echo "code $?"
"""
    said = lab.bash(script)
    assert said[-1] == "code 143", said
    assert any(f"{signal_name} came before these were started: replicas" in line for line in said)


def test_a_role_that_fails_leaves_the_others_the_time_to_save(lab: BatchLab) -> None:
    """The trainer was in a save when the server failed: it was killed two seconds after its TERM, and the save was lost."""
    saves = lab.run_dir / "saves.sh"
    saves.write_text(
        f"trap 'sleep 3; touch {lab.run_dir}/saved; exit 143' TERM\necho $$ >{lab.run_dir}/pid\nwhile :; do sleep 0.1; done\n"
    )
    lab.say("steps", "7.1 trainer\n7.2 kit-signal-1\n")
    script = f"""
KIT_STEPS=2
KIT_STEP_0=([name]=server [folder]=roles/s [variable]=S [policy]=service [first]=0 [nodes]=1 [ranks]=1 [ports]= [after]=
    [ready]= [ready_timeout]=60 [restart]=0 [least]=1 [health]=)
KIT_STEP_1=([name]=trainer [folder]=roles/t [variable]=T [policy]=main [first]=1 [nodes]=1 [ranks]=1 [ports]= [after]=
    [ready]= [restart]=0 [least]=1 [health]=)
KIT_STEP_0_ARGV=(srun bash -c 'until [[ -s {lab.run_dir}/pid ]]; do sleep 0.1; done; exit 7')
KIT_STEP_1_ARGV=(srun bash {saves})
KIT_SIGNAL_ARGV=(srun --job-name=kit-signal bash -c 'kill -s "$0" "$(<{lab.run_dir}/pid)"')
declare -A KIT_ROLE_S=([address]=n1 [master]=1) KIT_ROLE_T=([address]=n2 [master]=1) endpoints_nodes=([server]=n1 [trainer]=n2)
KIT_RESTART_COUNT=0
signals::trap
roles::run; echo "code $?"
"""
    said = lab.bash(script)
    assert said[-1] == "code 7", said
    assert any("telling trainer to save and end, within 90 s" in line for line in said)
    assert (lab.run_dir / "saved").exists(), said
    assert not any("is killed" in line for line in said), said


RESTARTABLE = {"TORCHELASTIC_RUN_ID": "7.0", "TORCHELASTIC_MAX_RESTARTS": "2", "KIT_FAILURES": "failures-0/a-0"}


@pytest.mark.parametrize(
    ("count", "signalled", "counts"), [("0", "", False), ("1", "", False), ("2", "", True), ("2", "1", False)]
)
def test_an_end_that_torchrun_follows_with_a_start_does_not_end_the_step(
    lab: BatchLab, count: str, signalled: str, counts: bool
) -> None:
    """torchrun ends the other ranks of a node by TERM before it restarts them, whatever restarts it has left."""
    record = f"failures::prepare a-0; failures::record_rank 3 137 '{signalled}'"
    script = f"{record}; failures::any a-0 && echo counts; failures::code_of a-0 0"
    said = lab.bash(f"KIT_RESTART_COUNT=0\n{script}", **RESTARTABLE, TORCHELASTIC_RESTART_COUNT=count)
    assert said == [*(["counts"] if counts else []), "137"]


def test_the_end_of_a_rank_that_torchrun_has_started_again_is_over(lab: BatchLab) -> None:
    script = """
KIT_RESTART_COUNT=0
failures::prepare a-0
failures::start_again 0
failures::record_rank 3 137 ''
failures::record_rank 0 143 1
failures::start_again 0
failures::first a-0 | cut -d" " -f2-3
failures::start_again 3
failures::code_of a-0 0; echo
failures::say_restarts a-0 2>&1 | cut -d" " -f3-
"""
    said = lab.bash(script, **RESTARTABLE, TORCHELASTIC_RESTART_COUNT="0")
    assert said == ["3 137", "0", "restarts by torchrun: 1; first, rank 3 on node n1 had ended with exit code 137"]
