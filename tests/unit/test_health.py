"""`kit why`: each rule on a run folder that a real job left (tests/why)."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kit import shell
from kit.health import next_command, progress
from kit.health.answer import Answer, Rule, filled
from kit.health.rules import (
    batch_log_rules,
    framework_rules,
    pending_reasons,
    program_rules,
    slurm_state_rules,
    stall_cause_rules,
)
from kit.health.run_record import Record
from kit.health.why import explain
from kit.hosts import status
from kit.ledger.read_run import SPENT
from kit.slurm.client import JobId, QueuedJob
from tests import laid_out
from tests.support import REPO
from tests.why.cases import CASES

FOLDER = REPO / "tests" / "why"


def answered(name: str, tmp_path: Path, *, instead: tuple[str, str] | None = None) -> Answer:
    """What is answered of a case, whose folder is copied: reading a run's status may clean it.

    instead: a pattern, and what stands for it in the logs: the words of another Slurm.
    """
    run = shutil.copytree(FOLDER / name, tmp_path / name)
    if instead:
        texts = {log: log.read_text(encoding="utf-8") for log in run.glob("logs/*.log")}
        for log, text in texts.items():
            log.write_text(re.sub(*instead, text, flags=re.MULTILINE), encoding="utf-8")
        assert any(re.search(instead[0], text, re.MULTILINE) for text in texts.values())
    seen = json.loads((run / "mtimes.json").read_text(encoding="utf-8")) if (run / "mtimes.json").exists() else {}
    for collected in run.glob("monitor/*.progress"):
        _written_now(collected, seen.get(collected.relative_to(run).as_posix()))
    said = json.loads((run / "slurm.json").read_text(encoding="utf-8"))
    queue: dict[JobId, QueuedJob] = {said["job_id"]: QueuedJob(**said)} if said else {}
    (one,) = status.read_statuses([run], queue=lambda cluster: queue)
    return explain(Record(status=one))


def _written_now(collected: Path, seen: float | None) -> None:
    """As if the node's collector had written it a moment ago: its times, and the file's own.

    seen: when its file server saw the last line written; None: when the node says.
    """
    lines = collected.read_text(encoding="utf-8").splitlines()
    later = time.time() - (float(lines[-1].split("\t")[0]) if seen is None else seen)
    moved = re.sub(r"\b\d{10}\.\d+", lambda found: f"{float(found[0]) + later:.3f}", lines[-1])
    collected.write_text(f"{moved}\n", encoding="utf-8")


@pytest.mark.parametrize("name", CASES)
def test_case(name: str, tmp_path: Path) -> None:
    case, found = CASES[name], answered(name, tmp_path)
    assert (found.rule, found.verdict) == (case.rule, case.verdict), found
    assert re.search(case.says, found.line), found.line
    assert found.next, "there is a command to run next"
    assert found.advice or found.rule == "completed"
    for cited in found.evidence:
        if cited.line:
            lines = (FOLDER / name / cited.file).read_text(encoding="utf-8").split("\n")
            assert cited.text.split(" ")[-1] in lines[cited.line - 1], "the evidence is the line that it names"


def test_an_abort_whose_report_failed_is_the_same_abort(tmp_path: Path) -> None:
    """faulthandler met a Python thread that was gone, and the rank ended with 139: as a rank of DeepSpeed did, in CI."""
    run = shutil.copytree(FOLDER / "freed-at-exit", tmp_path / "freed-at-exit")
    for log in run.glob("logs/*.log"):
        text = log.read_text(encoding="utf-8").replace("exit code 134", "exit code 139")
        text = re.sub(
            r"(?m)^((?:  \| )?)Current thread .*\n.*$", r"\1Fatal Python error: Segmentation fault\n\1\n\1", text
        )
        log.write_text(text.replace("140 Aborted", "140 Segmentation fault"), encoding="utf-8")
    failure = run / "state" / "failures-0" / "train-0" / "rank-0.134"
    failure.with_name("rank-0.139").write_text(failure.read_text().replace(" 134 ", " 139 "))
    failure.unlink()
    (one,) = status.read_statuses([run], queue=lambda cluster: {})
    found = explain(Record(status=one))
    assert (found.rule, found.verdict) == ("freed-at-exit", CASES["freed-at-exit"].verdict), found


def test_a_requeue_after_a_lost_node_says_so(tmp_path: Path) -> None:
    """The ranks of the other nodes ended by Slurm's own signals: their exit code is not the reason."""
    found = answered(
        "requeued", tmp_path, instead=("DUE TO JOB REQUEUE", "DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS")
    )
    assert found.rule == "requeued"
    assert "back in the queue after the loss of a node" in found.line
    assert "NODE FAILURE" in found.evidence[0].text


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        # The step is over as soon as its srun: the batch script finds none whose srun is gone.
        ("srun-failed", (r"^.*error: srun is gone.*\n", "")),
        (
            "cancelled-by-scancel",
            (r"^slurmstepd-n1: (error: .* CANCELLED AT (\S+)) ", r"[\2.736] \1 DUE to SIGNAL Terminated "),
        ),
    ],
)
def test_a_case_in_the_words_of_slurm_26_05(name: str, instead: tuple[str, str], tmp_path: Path) -> None:
    found = answered(name, tmp_path, instead=instead)
    assert (found.rule, found.verdict) == (CASES[name].rule, CASES[name].verdict), found


def test_a_preempted_run_whose_ranks_ended_with_0_is_named_on_every_slurm(tmp_path: Path) -> None:
    """On 22.05 such a job is FAILED, and nothing of Slurm's says why."""
    run = shutil.copytree(FOLDER / "preempted", tmp_path / "preempted")
    log = run / "logs" / "batch.log"
    first, *_ = log.read_text(encoding="utf-8").splitlines()
    doubt = "Slurm preempted the job, and the ranks ended with 0: whether they were done is not known, so the run ends with 143"
    log.write_text(f"{first}\n2026-11-22T13:06:59+0000 n1: {doubt}\n", encoding="utf-8")
    assert doubt.split(":", maxsplit=1)[0] in (laid_out.LIB / "retry.sh").read_text(encoding="utf-8")
    events = run / "state" / "events.jsonl"
    kept = [line for line in events.read_text(encoding="utf-8").splitlines() if '"requeue"' not in line]
    events.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    job = QueuedJob(job_id=138, state="FAILED", reason="NonZeroExitCode", nodes="n1", elapsed="0:01")
    (one,) = status.read_statuses([run], queue=lambda cluster: {138: job})
    found = explain(Record(status=one))
    assert (found.rule, found.verdict) == ("preempted", CASES["preempted"].verdict), found
    assert "whether they were done is not known" in found.line


def test_a_run_that_was_cancelled_after_the_lead_signal_is_cancelled(tmp_path: Path) -> None:
    """It was one whose time limit had come."""
    run = shutil.copytree(FOLDER / "time-limit-saved", tmp_path / "time-limit-saved")
    events = run / "state" / "events.jsonl"
    lines = events.read_text(encoding="utf-8").splitlines()
    (usr1,) = (line for line in lines if '"USR1"' in line)
    lines.insert(lines.index(usr1) + 1, usr1.replace("USR1", "TERM"))
    events.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    job = QueuedJob(job_id=136, state="CANCELLED", reason="None", nodes="n1", elapsed="0:01")
    (one,) = status.read_statuses([run], queue=lambda cluster: {136: job})
    assert explain(Record(status=one)).rule == "cancelled"


# Ends that the lab does not make by a small job, with a line that decides them.
LINES = {
    "preflight": "n1: this node's clock differs by 9 s from that of the run folder's file system; at most 5 are allowed",
    "pending": "SomethingNew",
    "point-not-made": "the run folder of task 7 was not made",
    "segfault-debug": '  File "/opt/torch/nn/parallel/distributed.py", line 1394 in _ddp_init_helper',
    "image-replaced": "2026-11-22T13:00:00+0000 n1: error: image /s/a.sqsh was replaced under the run: it has the digest x",
    "import-own": "ImportError: cannot import name 'a' from 'b' (/workspace/b.py)",
    "task-prolog": "| slurmstepd-n1: error: run_command: slurm task_prolog can not be executed (/opt/site/x.sh) No such file",
    "old-bash": "n2: bash 4.2.46(2)-release is too old here: the kit needs bash 4.4 or newer",
    "stage-image": "  | n2: image not staged: the copy has the digest 1234, the lock says 5678",
    "stage-node": "  | n2: image not staged: its 900 MB do not fit: /tmp/kit-ada/images has 20 MB free",
    "stage-failed": "2026-11-22T13:00:00+0000 n1: error: the image was not staged on every node; no rank was started",
    "site-part-failed": "2026-11-22T13:00:00+0000 n1: error: part scratch of the site: before_ranks ended with exit code 75",
    "all-reduce": "2026-11-22T13:00:00+0000 n1: error: the all-reduce over 16 ranks did not end within 60 s; see /r/logs",
    "nodes-too-few": "2026-11-22T13:00:00+0000 n1: error: 1 good nodes are left of 2, the plan wants 2",
    "role-silent": "2026-11-22T13:00:00+0000 n1: error: role policy was not ready within 60 s: no answer to http://n1:1",
}
# Rules without a text: what is left when no other fits, by exit code or by nothing at all.
LEFT = {
    "not-known",
    "batch-error",
    "unknown",
    "stalled-node",
    "stalled-silent",
    "observed-node",
    "observed-stall",
    "observed-slow",
}


RESTARTED = r"torchrun restarted the ranks twice, first because rank 3 on n\(2\) ended with exit code 137"


@pytest.mark.parametrize(
    ("name", "left", "says"),
    [
        ("completed", "", f"^it ended well; {RESTARTED}$"),
        ("running", "", f"^it runs on n.*; {RESTARTED}$"),
        ("killed", "", f"^{RESTARTED}; the last: rank 0 on .*killed"),
        # torchrun was to start rank 1 again, and could not.
        ("killed", "rank-1.1", "; the last: rank 1 on n1 failed first: it ended with exit code 1"),
    ],
)
def test_the_restarts_by_torchrun_are_told(name: str, left: str, says: str, tmp_path: Path) -> None:
    run = shutil.copytree(FOLDER / name, tmp_path / name)
    start = run / "state" / "failures-0" / "train-0"
    for folder in ("restarted", "restartable"):
        (start / folder).mkdir(parents=True)
    (start / "torchrun-starts").write_text("100.5\n110.5\n120.5\n")
    (start / "restarted" / "rank-3.137.110").write_text("109.1 3 137 n{2} \n")
    (start / "restarted" / "rank-0.143.110").write_text("109.2 0 143 n1 \n")
    (start / "restarted" / "rank-3.1.120").write_text("119.1 3 1 n2 \n")
    if left:
        (start / "restartable" / left).write_text("121.1 1 1 n1 \n")
    queue: dict[JobId, QueuedJob] = {}
    said = json.loads((run / "slurm.json").read_text(encoding="utf-8"))
    if said:
        queue[said["job_id"]] = QueuedJob(**said)
    (one,) = status.read_statuses([run], queue=lambda cluster: queue)
    assert re.search(says, explain(Record(status=one)).line), explain(Record(status=one)).line


@pytest.mark.parametrize(("after", "first"), [(3.0, "rank 1 on n2 failed first: it was killed"), (10.0, "rank 0 on")])
def test_a_rank_that_was_killed_alone_is_named_before_a_peer_whose_clock_is_behind(
    tmp_path: Path, after: float, first: str
) -> None:
    run = shutil.copytree(FOLDER / "killed", tmp_path / "killed")
    start = run / "state" / "failures-0" / "train-0"
    for path in start.iterdir():
        path.unlink()
    (start / "rank-0.1").write_text("100.0 0 1 n1 \n")
    (start / "rank-1.137.alone").write_text(f"{100 + after} 1 137 n2 \n")
    (one,) = status.read_statuses([run], queue=lambda cluster: {})
    found = explain(Record(status=one))
    assert first in found.line, found.line


def tables() -> list[Rule]:
    found = (
        pending_reasons.RULES,
        batch_log_rules.PREFLIGHT,
        batch_log_rules.BATCH,
        framework_rules.ALL,
        program_rules.RULES,
        program_rules.BY_CODE,
    )
    stalled = [*progress.STALLS.values(), progress.STRAGGLES, *(rule for rule, _ in stall_cause_rules.RULES)]
    stalled += [stall_cause_rules.SHAPE, stall_cause_rules.UNREACHABLE, stall_cause_rules.CLOCK, stall_cause_rules.DOWN]
    outside = [rule for rule, _ in slurm_state_rules.ENDS]
    return [*(rule for table in found for rule in table), framework_rules.MEGATRON, *stalled, *outside]


def ids() -> set[str]:
    """Of all rules: those of tables, and those that a function decides."""
    functions = set()
    for path in (REPO / "kit" / "health").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "answer":
                functions |= {str(a.value) for a in node.args[1:2] if isinstance(a, ast.Constant)}
    return functions | {rule.id for rule in tables()}


def test_every_rule_has_a_case() -> None:
    covered = {case.rule for case in CASES.values()}
    assert len(covered) >= 40
    assert ids() - covered == set(LINES) | LEFT
    assert covered - ids() == {"exception", "assertion", "retries-exhausted", "no-progress"}, (
        "what blamed_rank.py and why.py make of another rule"
    )


@pytest.mark.parametrize("name", LINES)
def test_a_line_of_an_end_that_has_no_case(name: str) -> None:
    assert any(rule.search(LINES[name]) for rule in tables() if rule.id == name)


def test_the_next_command_of_an_end_before_the_ranks_names_no_rank(tmp_path: Path) -> None:
    run = shutil.copytree(FOLDER / "once-failed", tmp_path / "once-failed")
    log = run / "logs" / "batch.log"
    lines = [line for line in log.read_text().splitlines() if "the lines of [once]" not in line]
    log.write_text("\n".join((*lines[:-1], LINES["site-part-failed"], lines[-1])) + "\n")
    (one,) = status.read_statuses([run], queue=lambda cluster: {})
    found = explain(Record(status=one))
    assert (found.rule, found.next) == ("site-part-failed", "kit logs once-failed --tail 50")
    assert "own part scratch ended the job before its ranks: its before_ranks ended with exit code 75" in found.line


def test_the_code_of_a_script_of_ones_own_is_the_reason(tmp_path: Path) -> None:
    """The kit knows nothing else of it."""
    run = shutil.copytree(FOLDER / "once-failed", tmp_path / "own")
    log = run / "logs" / "batch.log"
    log.write_text("".join(line for line in log.read_text().splitlines(keepends=True) if "error:" not in line))
    (one,) = status.read_statuses([run], queue=lambda cluster: {})
    assert explain(Record(status=one)).line.startswith("no rule knows this end")
    (run / "script").write_text("#!/bin/bash\nexit 3\n")
    found = explain(Record(status=one))
    assert (found.rule, found.verdict) == ("unknown", "fix the code")
    assert "its batch script ended with exit code 3" in found.line


def test_a_case_that_is_only_printed_says_so() -> None:
    """A GPU's message is printed by a job; every other case is the thing itself."""
    printed = {name for name, case in CASES.items() if case.printed}
    assert all(
        name.startswith(("cuda-", "nccl-", "deepspeed-", "megatron-", "ray-", "shm-", "oom-")) for name in printed
    )


@pytest.mark.parametrize(
    "end",
    [
        b"",
        b"\xff\xfe\x00" * 100,
        b"x" * 3_000_000,
        b"\r".join([b"step"] * 50_000),
        b"Traceback (most recent call last):\n" * 9_999,
    ],
    ids=["empty", "binary", "one long line", "a progress bar", "headers alone"],
)
def test_a_log_of_any_kind_is_answered(end: bytes, tmp_path: Path) -> None:
    run = shutil.copytree(FOLDER / "exception", tmp_path / "exception")
    (run / "logs" / "rank-0.log").write_bytes(end)
    (one,) = status.read_statuses([run], queue=lambda cluster: {})
    found = explain(Record(status=one))
    assert found.rule in {"exit-code", "exit-silent"}
    assert len(found.line) < 700
    assert found.line.isprintable()


def test_a_crash_in_torchs_own_debugging_is_no_fault_of_the_code(tmp_path: Path) -> None:
    """As torch 2.13 on CPUs ends under TORCH_DISTRIBUTED_DEBUG=DETAIL."""
    run = shutil.copytree(FOLDER / "segfault", tmp_path / "segfault")
    log = run / "logs" / "rank-0.log"
    text = log.read_text()
    frame = '  File "/opt/venv/lib/python3.11/site-packages/torch/nn/parallel/distributed.py", line 1394 in _ddp_init_helper\n'
    head, first, rest = text.partition("(most recent call first):\n")
    log.write_text(head + first + frame + rest)
    (one,) = status.read_statuses([run], queue=lambda cluster: {})
    assert explain(Record(status=one)).rule == "segfault-debug"


def test_the_line_is_numbered_as_the_file_is_however_long_the_log(tmp_path: Path) -> None:
    run = shutil.copytree(FOLDER / "exception", tmp_path / "exception")
    log = run / "logs" / "rank-0.log"
    own = log.read_bytes()
    log.write_bytes(b"an earlier line\n" * 200_000 + own)
    (one,) = status.read_statuses([run], queue=lambda cluster: {})
    found = explain(Record(status=one))
    lines = log.read_text(encoding="utf-8").split("\n")
    assert lines[found.evidence[0].line - 1] == found.evidence[0].text == "KeyError: 'lr'"


def test_a_run_folder_without_anything(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    (one,) = status.read_statuses([tmp_path / "gone"], queue=lambda cluster: {})
    assert explain(Record(status=one)).rule == "unreadable"


def looks(tmp_path: Path, **nodes: str) -> Path:
    """A run folder whose nodes' collectors wrote these looks."""
    (tmp_path / "monitor").mkdir()
    for node, line in nodes.items():
        (tmp_path / "monitor" / f"slurm-7.{node}.progress").write_text(line, encoding="utf-8")
    return tmp_path


def test_a_node_that_reports_nothing_is_told_from_ranks_that_wait(tmp_path: Path) -> None:
    now = 1000.0
    run = looks(tmp_path, n1="1000.0\t@0 9 compute 940.0 0.5 1\n", n2="920.0\t@1 9 compute 919.0 0.5 1\n")
    os.utime(run / "monitor" / "slurm-7.n1.progress", (now, now))
    os.utime(run / "monitor" / "slurm-7.n2.progress", (920.0, 920.0))
    ranks = progress.read_ranks(run, 7, now=now)
    found = progress.stall(ranks)
    assert found is not None
    assert (found.rule.id, [one.node for one in found.culprits]) == ("stalled-node", ["n2"])
    assert progress.values(found, ranks)["age"] == 80


@pytest.mark.parametrize(
    ("line", "still"),
    [
        ("1000.0\t@0 9 compute 980.0 20.0 1\n", False),
        ("1000.0\t@0 9 compute 900.0 20.0 1\n", True),
        ("1000.0\t@0 90 compute 900.0 0.5 100\n", False),
        ("1000.0\t@0 9 save 900.0 0.5 1\n", False),
        ("1000.0\t@0 0 start 900.0 0.0 0\n", False),
        ("1000.0\t@0 0 compute 300.0 0.0 0\n", True),
    ],
    ids=[
        "a slow step",
        "a step that hangs",
        "a report in a hundred steps",
        "a save",
        "a start",
        "a first step that hangs",
    ],
)
def test_limits(line: str, still: bool, tmp_path: Path) -> None:
    run = looks(tmp_path, n1=line)
    os.utime(run / "monitor" / "slurm-7.n1.progress", (1000.0, 1000.0))
    assert (progress.stall(progress.read_ranks(run, 7, now=1000.0)) is not None) is still


def test_a_look_that_was_cut_off_has_the_ranks_that_are_whole(tmp_path: Path) -> None:
    run = looks(tmp_path, n1="1000.0\t@0 9 compute 990.0 0.5 1\ttrainer@3 4 data 990.0 0.5 1\t@1 9 comp")
    assert [(one.role, one.rank, one.step) for one in progress.read_ranks(run, 7)] == [("", 0, 9), ("trainer", 3, 4)]
    assert progress.read_ranks(run, 8) == [], "another job's"


def test_what_a_rank_reports(tmp_path: Path) -> None:
    """kit_rank by itself, as in a rank: a line of what it does now, and one of what its seconds went into."""
    script = (
        "import os, sys, time\nfrom kit_rank import RankReporter\np = RankReporter(sys.argv[1], '@3')\n"
        "p.step(4)\nfor step in (6, 8, 10):\n    time.sleep(0.05)\n    p.step(step)\n"
        "    if step == 8: print(open(sys.argv[1] + '/@3').readline(), end='')\n"
        "with p.phase('save'):\n    print(open(sys.argv[1] + '/@3').read(), end='')\n"
        "try:\n    p.phase('sleeping').__enter__()\nexcept ValueError as error:\n    print(error)\n"
        "print(open(sys.argv[1] + '/@3').read(), end='')\n"
    )
    env = {"PYTHONPATH": str(REPO / "templates" / "kit_node"), "PATH": os.environ["PATH"]}
    done = shell.run([sys.executable, "-c", script, str(tmp_path)], env=env)
    early, saving, _, refused, after, spent = done.stdout.splitlines()
    assert early.split()[4] == "0", "programs compile in more than their first step: nothing is learned of two"
    assert saving.split()[:2] == ["10", "save"]
    assert 0.02 < float(saving.split()[3]) < 5, "seconds of one step of the two"
    assert saving.split()[4] == "2"
    assert "'sleeping' is not a phase; there are start rendezvous data compute" in refused
    assert after.split()[:2] == ["10", "compute"]
    attempt, began, worker, ended, first, *seconds = spent.split()
    assert (attempt, worker, float(ended), first) == ("0", "0", 0.0, "4")
    assert 0.04 < float(seconds[SPENT.index("first")]) < 5, "the first step's"
    assert abs(time.time() - float(began)) < 60


def test_the_last_report_of_a_process_that_is_gone_is_kept(tmp_path: Path) -> None:
    """torchrun starts a rank again before the monitor has looked."""
    script = "import sys\nfrom kit_rank import RankReporter\nRankReporter(sys.argv[1], '@3').step(int(sys.argv[2]))\n"
    env = {"PYTHONPATH": str(REPO / "templates" / "kit_node"), "PATH": os.environ["PATH"]}
    for step in (7, 2):
        shell.run([sys.executable, "-c", script, str(tmp_path), str(step)], env=env)
    reports = sorted(tmp_path.glob("@*"))
    assert [path.read_text().split()[0] for path in reports] == ["2", "7"]
    ended = float(reports[1].read_text().splitlines()[1].split()[3])
    assert ended > 0, "it says that it came to its end"
    assert reports[1].name.startswith("@3~")


def test_a_process_that_multiprocessing_spawned_is_no_rank(tmp_path: Path) -> None:
    """It imports the rank's program, and with it kit_rank: its report would take the rank's place."""
    (tmp_path / "program.py").write_text(
        "import multiprocessing\nfrom kit_rank import progress\ndef work():\n    print(progress._folder)\n"
        "if __name__ == '__main__':\n    print(progress._folder, flush=True)\n"
        "    one = multiprocessing.get_context('spawn').Process(target=work)\n    one.start()\n    one.join()\n"
    )
    env = {
        "PYTHONPATH": str(REPO / "templates" / "kit_node"),
        "PATH": os.environ["PATH"],
        "SLURM_JOB_ID": "4000000001",
        "KIT_RUN_DIR": str(tmp_path),
    }
    done = shell.run([sys.executable, str(tmp_path / "program.py")], env=env)
    assert done.stdout.splitlines() == [f"/dev/shm/kit-{os.geteuid()}-4000000001", "None"]


def test_outside_a_run_nothing_is_written() -> None:
    env = {"PYTHONPATH": str(REPO / "templates" / "kit_node"), "PATH": os.environ["PATH"]}
    done = shell.run(
        [sys.executable, "-c", "from kit_rank import progress\nprogress.step(1)\nprint(progress._folder)"], env=env
    )
    assert done.stdout == "None"


@pytest.mark.parametrize(
    "files",
    [
        {"rank-0.1.stderr": "{start}earlier\n", "rank-0.2.stderr": "{start}{error}", "rank-0.2.stdout": "step 1\n"},
        {"rank-0.1.stdout": "step 1\n{error}"},
        {"rank-0": "{error}", "rank-0.1.stdout": "step 1\n"},
    ],
    ids=["stderr", "stdout", "own"],
)
def test_the_error_is_found_in_each_file_that_a_rank_writes_to(files: dict[str, str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(FOLDER / "exception", run)
    log = (run / "logs/rank-0.log").read_text()
    start, error = log[: log.index("\n") + 1], log[log.index("Traceback") :]
    own = f"{start}2026-01-01T00:00:00+0000 n1: torchrun writes what it prints to /x\n"
    (run / "logs/rank-0.log").write_text(own)
    for name, text in files.items():
        with (run / f"logs/{name}.log").open("a") as file:
            file.write(text.format(start=start, error=error))
    (one,) = status.read_statuses([run], queue=lambda cluster: {})
    found = explain(Record(status=one))
    (where,) = (name for name, text in files.items() if "{error}" in text)
    assert (found.rule, found.evidence[0].file) == ("exception", f"logs/{where}.log")


@pytest.mark.parametrize("stream", ["batch", "error"])
@pytest.mark.parametrize("name", ["once-failed", "cancelled-by-scancel"])
def test_a_batch_log_elsewhere_is_read(name: str, stream: str, tmp_path: Path) -> None:
    """slurm.output and slurm.error: lib/output_links.sh links the job's own files. The newest job's count."""
    run = shutil.copytree(FOLDER / name, tmp_path / name)
    as_usual = status.read_statuses([run], queue=lambda cluster: {})[0].state, answered(name, tmp_path / "usual").rule
    (run / "logs/batch.log").rename(tmp_path / "there")
    (run / f"logs/{stream}-10.log").symlink_to(tmp_path / "there")
    for other in ("batch-9", *(["batch-10"] if stream == "error" else [])):
        (run / f"logs/{other}.log").write_text("nothing here\n")
    (one,) = status.read_statuses([run], queue=lambda cluster: {})
    assert (one.state, explain(Record(status=one)).rule) == as_usual


@pytest.mark.parametrize(
    ("raised", "rule"),
    [
        ("cannot import name 'a' from 'b' (/home/u/site/b.py)", "import-own"),
        ("cannot import name 'a' from partially initialized module 'b' (most likely a circular import) (/w/b.py)", "import-own"),
        ("cannot import name 'a' from 'b' (/opt/venv/lib/python3.12/site-packages/b.py)", "import-name"),
        ("cannot import name 'a' from 'json' (/usr/lib/python3.11/json/__init__.py)", "import-name"),
        ("cannot import name 'a' from 'b' (unknown location)", "import-name"),
    ],
)  # fmt: skip
def test_a_name_that_a_file_of_ones_own_lacks_is_no_matter_of_packages(raised: str, rule: str) -> None:
    found = [one.id for one in program_rules.RULES if one.search(f"ImportError: {raised}")]
    assert found[0] == rule


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("OSError: [Errno 28] No space left on device: '/x'", "no space is left on the disk, or in the quota: '/x'"),
        ("OSError: [Errno 28] No space left on device", "no space is left on the disk, or in the quota"),
        ("OSError: [Errno 122] Disk quota exceeded", "no space is left on the disk, or in the quota"),
        ("RuntimeError: write failed, [Errno 28]", "no space is left on the disk, or in the quota"),
        ("write: No space left on device (os error 28)", "no space is left on the disk, or in the quota"),
    ],
)
def test_a_full_disk_is_one_sentence(line: str, says: str) -> None:
    (rule,) = (one for one in program_rules.RULES if one.id == "disk-full")
    found = rule.search(line)
    assert found is not None
    assert filled(rule.says, found.groupdict()) == says


@pytest.mark.parametrize(
    ("retry", "requeued", "line", "advice"),
    [
        ("", 0, "^after 2 starts; the last: rank 0", "retry.in_allocation starts again$"),
        (
            "in_allocation = 1",
            0,
            "^after 2 starts no restart is left; the",
            r"a larger retry.in_allocation \(its 1 is used up\) st",
        ),
        ("in_allocation = 2", 0, "^after 2 starts; the last: rank 0", "; retry.in_allocation starts again$"),
        ("in_allocation = 1\nrequeue = 1", 0, "^after 2 starts; the last: rank 0", "a larger retry.in_allocation"),
        (
            "requeue = 1",
            1,
            "^after 2 starts no restart is left; the last: rank 0",
            "; retry.in_allocation starts again$",
        ),
    ],
)
def test_what_is_left_of_retry_is_told_as_it_is(
    retry: str, requeued: int, line: str, advice: str, tmp_path: Path
) -> None:
    run = shutil.copytree(FOLDER / "killed", tmp_path / "killed")
    (run / "job.toml").write_text(f"[retry]\n{retry}\n")
    events = [json.loads(text) for text in (run / "state" / "events.jsonl").read_text().splitlines()]
    (place,) = (number for number, event in enumerate(events) if event["event"] == "attempt")
    again = [{**event, "restart": requeued} for event in events[0 if requeued else place : place + 1]]
    told = [*events[: place + 1], *again, *events[place + 1 :]]
    (run / "state" / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in told))
    (one,) = status.read_statuses([run], queue=lambda cluster: {})
    found = explain(Record(status=one))
    assert re.search(line, found.line), found.line
    assert re.search(advice, found.advice), found.advice


def test_the_advice_of_an_end_from_outside_knows_what_is_used_up(tmp_path: Path) -> None:
    """`set retry.requeue` is no advice for a job that has it."""
    run = shutil.copytree(FOLDER / "preempted", tmp_path / "preempted")
    said = json.loads((run / "slurm.json").read_text(encoding="utf-8"))
    (one,) = status.read_statuses([run], queue=lambda cluster: {said["job_id"]: QueuedJob(**said)} if said else {})
    plain = explain(Record(status=one)).advice
    assert "set retry.requeue, and" in plain
    (run / "job.toml").write_text("[retry]\nrequeue = 1\n")
    events = (run / "state" / "events.jsonl").read_text()
    (run / "state" / "events.jsonl").write_text(events.replace('"restart": 0', '"restart": 1'))
    found = explain(Record(status=one)).advice
    assert found == plain.replace("set retry.requeue", "raise retry.requeue (its 1 is used up)")


@pytest.mark.parametrize("name", ["stepd-killed", "killed"])
def test_no_lack_of_memory_is_told_that_nobody_saw(name: str, tmp_path: Path) -> None:
    found = answered(name, tmp_path)
    assert "unknown" in found.line + found.advice
    assert "whether memory was short" in found.advice
    assert not re.search(r"mostly|most likely|probably", found.line + found.advice)


def test_the_next_command_repeats_what_the_command_line_had_set(tmp_path: Path) -> None:
    run = shutil.copytree(FOLDER / "disk-full", tmp_path / "disk-full")
    manifest = json.loads((run / "manifest.json").read_text())
    keys = ["args", "image", "resources.nodes", "slurm.exclude"]
    manifest["set_by"] = [
        {"kind": "set", "name": "--set", "keys": keys},
        {"kind": "file", "name": "job.toml", "keys": ["name"]},
    ]
    (run / "manifest.json").write_text(json.dumps(manifest))
    job = 'name = "x"\nimage = "mine"\nargs = ["--lr", "0.1 x"]\n[resources]\nnodes = 2\n[slurm]\nexclude = "n1"\n'
    (run / "job.toml").write_text(job)
    (one,) = status.read_statuses([run], queue=lambda cluster: {})
    record = Record(status=one)
    file, found = manifest["job_file"], explain(record)
    words = """--set 'args=["--lr", "0.1 x"]' --set image=mine --set resources.nodes=2"""
    assert found.next == f"kit submit {file} {words} --set 'slurm.exclude=\"n1\"'"
    without = replace(found, next=f"kit submit {file} --set slurm.exclude=n2")
    assert next_command.for_run(record, without).next == f"kit submit {file} {words} --set slurm.exclude=n2"
    (run / "job.toml").write_text("[resources\n")
    assert explain(Record(status=one)).next == f"kit submit {file}"
