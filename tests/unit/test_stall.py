"""Stalled ranks: stall.awk, which the nodes run, and kit.health.progress, which a person's command does, judge alike."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit import shell
from kit.health import progress
from kit.health.answer import Answer
from kit.health.rules import stall_rules
from kit.health.run_record import Record
from kit.health.why import explain
from kit.hosts import status
from tests import laid_out
from tests.support import REPO

AWK = laid_out.LIB / "stall.awk"
NOW = 100_000.0


def looks(folder: Path, **nodes: str) -> Path:
    """A run folder whose nodes' collectors wrote these reports a moment ago."""
    monitor = folder / "monitor"
    monitor.mkdir(parents=True, exist_ok=True)
    for old in monitor.iterdir():
        old.unlink()
    for node, reports in nodes.items():
        path = monitor / f"slurm-7.{node}.progress"
        path.write_text(f"{NOW}\t{reports}\n", encoding="utf-8")
        os.utime(path, (NOW, NOW))
    return folder


def judged(
    run: Path,
    *,
    since: float = 0.0,
    seconds: str = "0",
    least: str = "0",
    now: float = NOW,
    most_s: float | None = None,
) -> list[list[str]]:
    """What stall.awk prints, within most_s seconds."""
    files = sorted(str(path) for path in (run / "monitor").iterdir())
    last = shell.run(["tail", "-v", "-n", "1", "--", *files]).stdout
    values = {"now": now, "since": since, "seconds": seconds, "least": least}
    argv = ["awk", *(word for name, value in values.items() for word in ("-v", f"{name}={value}")), "-f", str(AWK)]
    return [line.split(" ") for line in shell.run(argv, input=last + "\n", timeout=most_s).stdout.splitlines()]


REPORT = st.tuples(
    st.integers(0, 4),
    st.sampled_from(["start", "rendezvous", "data", "compute", "communicate", "save", "evaluate", "compile", "end"]),
    st.sampled_from([0, 3, 14, 16, 40, 100, 601, 700]),
    st.sampled_from([0.1, 1.0, 12.0]),
    st.sampled_from([0, 1, 10]),
    st.sampled_from([0.1, 30.0]),
    st.sampled_from([0, 0.5, 30.0]),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(["", "a", "b"]), REPORT), min_size=1, max_size=8))
def test_the_nodes_and_the_commands_judge_alike(tmp_path: Path, given: list[tuple[str, tuple[object, ...]]]) -> None:
    reports: dict[str, list[str]] = {"n1": [], "n2": []}
    for rank, (role, (step, phase, idle, took, every, longest, slowest)) in enumerate(given):
        assert isinstance(idle, int)
        line = f"{role}@{rank} {step} {phase} {NOW - idle} {took} {every} {longest} 0 0 {slowest}"
        reports["n1" if rank % 2 else "n2"].append(line)
    run = looks(tmp_path, **{node: "\t".join(lines) for node, lines in reports.items() if lines})
    ranks = progress.read_ranks(run, 7, now=NOW)
    furthest, *stall = judged(run)
    assert furthest == ["furthest", str(max(one.step for one in ranks))]
    # Roles are looked at in the order of their ranks here, and of the nodes' files there.
    found = [progress.stall([r for r in ranks if r.role == role]) for role in dict.fromkeys(r.role for r in ranks)]
    expected = [
        (one.rule.id, one.stalled[0].role or "-", len(one.stalled), {r.node for r in one.culprits})
        for one in found
        if one is not None
    ]
    if not expected:
        assert stall == []
        return
    (rule, role, _rank, node, _step, _phase, _idle, _waiting, count, others) = stall[0]
    named = {node, *([] if others == "-" else others.split(","))} if rule != "stalled-together" else set()
    assert (rule, role, int(count), named) in expected


def test_who_waits_for_whom(tmp_path: Path) -> None:
    still = f"{NOW - 60} 1.0 1 1.0 0.5"
    run = looks(tmp_path, n1=f"@0 9 communicate {still}\t@1 9 communicate {still}", n2=f"@2 9 data {still}")
    assert judged(run)[1] == ["stalled-phase", "-", "2", "n2", "9", "data", "60", "2", "3", "-"]


def test_reports_of_an_earlier_attempt_are_no_stall(tmp_path: Path) -> None:
    run = looks(tmp_path, n1=f"@0 9 compute {NOW - 60} 1.0 1 1.0 0.0")
    assert judged(run, since=NOW - 30) == [["furthest", "9"]]
    assert progress.read_ranks(run, 7, now=NOW, since=NOW - 30) == []


def test_a_limit_in_seconds_holds_for_every_phase(tmp_path: Path) -> None:
    run = looks(tmp_path, n1=f"@0 9 save {NOW - 60} 1.0 1 1.0 0.0")
    assert [line[0] for line in judged(run, seconds="30")] == ["furthest", "stalled-together"]
    assert judged(run, seconds="90") == [["furthest", "9"]]
    assert judged(run, seconds="30", least="90") == [["furthest", "9"]], "an alarm that was wrong has taught it"


def test_a_step_that_was_long_before_may_be_long_again(tmp_path: Path) -> None:
    run = looks(tmp_path, n1=f"@0 9 compute {NOW - 60} 1.0 1 40.0 0.0")
    assert judged(run) == [["furthest", "9"]]
    assert progress.stall(progress.read_ranks(run, 7, now=NOW)) is None


def test_what_is_left_after_the_first_rank_has_ended_may_write_for_longer(tmp_path: Path) -> None:
    run = looks(tmp_path, n1=f"@0 9 compute {NOW - 60} 1.0 1 1.0 0.0", n2=f"@1 9 end {NOW - 60} 1.0 1 1.0 0.0")
    assert judged(run) == [["furthest", "9"]]
    assert progress.stall(progress.read_ranks(run, 7, now=NOW)) is None


def test_a_collector_that_was_killed_is_no_stall(tmp_path: Path) -> None:
    run = looks(tmp_path, n1=f"@0 9 compute {NOW - 1} 1.0 1 1.0 0.0", n2=f"@1 9 compute {NOW - 1} 1.0 1 1.0 0.0")
    assert judged(run, now=NOW + 900) == [["furthest", "9"]], "all of them: the monitor's step is gone"
    assert progress.stall(progress.read_ranks(run, 7, now=NOW + 900)) is None


def test_nothing_moves_on_any_node(tmp_path: Path) -> None:
    assert judged(looks(tmp_path, n1="@quiet 2000", n2="@quiet 1900"))[1][:4] == ["stalled-silent", "-", "0", "n2"]
    assert len(judged(looks(tmp_path, n1="@quiet 2000", n2="@quiet 30"))) == 1
    assert len(judged(looks(tmp_path, n1="@quiet 2000", n2=f"@1 9 compute {NOW} 1.0 1 1.0 0.0"))) == 1


@pytest.mark.parametrize(
    ("waited", "named"),
    [((2.7, 0.3, 2.8), 1), ((0.1, 0.1, 0.1), None), ((0.0, 0.0, 0.0), None)],
    ids=["one works while the others wait", "none waits much", "none reports when it waits"],
)
def test_a_straggler_is_told_from_a_stall(tmp_path: Path, waited: tuple[float, ...], named: int | None) -> None:
    lines = [f"@{rank} 9 compute {NOW - 1} 3.0 1 3.0 {time}" for rank, time in enumerate(waited)]
    ranks = progress.read_ranks(looks(tmp_path, n1="\t".join(lines)), 7, now=NOW)
    assert progress.stall(ranks) is None
    found = progress.straggler(ranks)
    assert (found[0].rank if found else None) == named
    if found:
        assert found[1] == pytest.approx(2.45 / 3.0, abs=0.01), "of each step"


@pytest.mark.parametrize(
    ("read", "says"),
    [((0.0, 1.4, 0.0), True), ((1.4, 1.4, 1.4), False)],
    ids=["its storage is slow", "all read as long, and it computes for longer"],
)
def test_a_straggler_that_reads_is_said_to(tmp_path: Path, read: tuple[float, ...], says: bool) -> None:
    """Of a step of 3 s the others wait 1.5: what it does beyond them decides, not what it does in all."""
    lines = [f"@{n} 9 compute {NOW - 1} 3.0 1 3.0 {0 if n == 1 else 1.5} {s} 0" for n, s in enumerate(read)]
    ranks = progress.read_ranks(looks(tmp_path, n1="\t".join(lines)), 7, now=NOW)
    assert (found := progress.straggler(ranks)) is not None
    assert found[0].rank == 1
    assert progress.reads(found[0], ranks) is says


def rank_file(
    run: Path,
    rank: int,
    frames: str,
    *,
    state: str = "S",
    wchan: str = "futex_do_wait",
    opened: str = "",
    role: str = "",
) -> None:
    """A rank's evidence, in the form of evidence.sh and faulthandler."""
    folder = run / "state" / "stall-1"
    folder.mkdir(parents=True, exist_ok=True)
    stack = "".join(
        f'  File "{file}", line 12 in {function}\n' for function, file in (f.split("@") for f in frames.split())
    )
    text = f"== rank\nrank {rank}\nrole {role}\nnode n{rank // 2}\nreport -\n== processes\n7 {state} 0 {wchan} python train.py\n"
    text += f'== files\n{opened}== stacks\nProcess 7\nThread 0x1 (most recent call first):\n  File "x.py", line 1 in other\n'
    (folder / f"rank-{rank}{role}.txt").write_text(
        f"{text}\nCurrent thread 0x2 (most recent call first):\n{stack}", encoding="utf-8"
    )


C10D = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
SUM, BROADCAST = (
    f"all_reduce@{C10D} wrapper@c10d_logger.py step@/workspace/train.py",
    f"broadcast@{C10D} step@/workspace/train.py",
)
WHY = REPO / "tests" / "why" / "stall-ended"


@pytest.mark.parametrize(
    ("culprit", "rule", "says"),
    [
        ({"frames": BROADCAST}, "stall-order", r"rank 5 \(n2\) is in broadcast, and 7 ranks are in all_reduce"),
        (
            {"frames": "read@/w/train.py", "state": "D", "wchan": "fuse_wait_answer", "opened": "7 /data/x.bin\n7 /lib/c.so.6\n"},
            "stall-kernel",
            r"rank 5 \(n2\) waits in the kernel \(fuse_wait_answer\) with /data/x.bin open; 7 ranks wait for it in all_reduce",
        ),
        (
            {"frames": "get@q.py _try@/v/site-packages/torch/utils/data/dataloader.py main@/w/train.py", "opened": "7 /data/x\n"},
            "stall-data",
            r"rank 5 \(n2\) is in its data loader, with /data/x open; 7 ranks wait for it in all_reduce",
        ),
        ({"frames": "nap@/w/train.py"}, "stall-elsewhere", r"rank 5 \(n2\) is in nap \(train.py:12\); 7 ranks wait for it"),
    ],
    ids=["order", "kernel", "data", "elsewhere"],
)  # fmt: skip
def test_the_culprit_is_the_rank_that_is_not_where_the_others_are(
    tmp_path: Path, culprit: dict[str, str], rule: str, says: str
) -> None:
    run = shutil.copytree(WHY, tmp_path / "stall-ended")
    shutil.rmtree(run / "state" / "stall-1")
    for rank in range(8):
        rank_file(run, rank, **({"frames": SUM} if rank != 5 else culprit))
    (one,) = status.read_statuses([run], queue=lambda cluster: {})
    found = explain(Record(status=one))
    assert found.rule == rule, found
    assert re.search(says, found.line), found.line
    for cited in found.evidence:
        assert (run / cited.file).read_text(encoding="utf-8").split("\n")[cited.line - 1].strip() == cited.text


def test_evidence_that_was_cut_off_is_no_traceback(tmp_path: Path) -> None:
    run = shutil.copytree(WHY, tmp_path / "stall-ended")
    for path in (run / "state" / "stall-1").iterdir():
        path.write_bytes(path.read_bytes()[:90] + b"\xff\x00")
    (one,) = status.read_statuses([run], queue=lambda cluster: {})
    assert explain(Record(status=one)).rule.startswith("stall")


def test_what_all_ranks_of_a_role_wait_for_may_be_another_role(tmp_path: Path) -> None:
    """Groups whose lighthouse is stopped."""
    run = shutil.copytree(WHY, tmp_path / "stall-ended")
    shutil.rmtree(run / "state" / "stall-1")
    for rank in range(4):
        rank_file(run, rank, "should_commit@/w/quorum.py")
    rank_file(run, 0, "", state="T", wchan="do_signal_stop", role="lighthouse")
    (one,) = status.read_statuses([run], queue=lambda cluster: {})
    found = explain(Record(status=one))
    assert found.rule == "stall-stopped", found
    assert "role lighthouse: rank 0 (n0) is stopped" in found.line


def test_a_node_without_evidence_is_the_culprit_once_all_had_their_time(tmp_path: Path) -> None:
    run = shutil.copytree(WHY, tmp_path / "stall-ended")
    shutil.rmtree(run / "state" / "stall-1")
    job = int(next(run.glob("monitor/*.progress")).name.split(".")[0].removeprefix("slurm-"))
    for old in run.glob("monitor/*.progress"):
        old.unlink()
    now = time.time() + 60
    for node in range(2):
        lines = "\t".join(f"@{2 * node + n} 5 communicate {now} 1.0 1 1.0 0.9 0 0" for n in range(2))
        (run / "monitor" / f"slurm-{job}.n{node}.progress").write_text(f"{now}\t{lines}\n", encoding="utf-8")
    for rank in range(2):
        rank_file(run, rank, SUM)
    (one,) = status.read_statuses([run], queue=lambda cluster: {})
    assert explain(Record(status=one)).rule != "stall-unreachable", "the other node may still answer"
    (run / "state" / "stall-1" / "complete").touch()
    found = explain(Record(status=one))
    assert found.rule == "stall-unreachable", found
    assert "rank 2 on n1: its node n1 did not answer" in found.line


def test_a_rank_that_waits_for_one_that_saves_is_no_stall(tmp_path: Path) -> None:
    """Rank 0 saves alone, and has done so for as long before; the limit of a save that never took long is a step's."""
    waits = "\t".join(f"@{rank} 9 communicate {NOW - 40} 1.0 1 1.0 0.5 0 0" for rank in range(1, 4))
    for before, rule in (("0", None), ("30", None), ("0.5", "stalled-phase")):
        run = looks(tmp_path, n1=f"@0 9 save {NOW - 40} 1.0 1 1.0 0.5 0 {before}\t{waits}")
        found = progress.stall(progress.read_ranks(run, 7, now=NOW))
        assert (found.rule.id if found else None) == rule, before
        assert [line[0] for line in judged(run)[1:]] == ([rule] if rule else [])


def test_a_clock_that_is_wrong_makes_no_stall(tmp_path: Path) -> None:
    """The file server saw the line written now; the node says it is five minutes later."""
    run = looks(tmp_path, n1=f"@0 9 compute {NOW - 1} 1.0 1 1.0 0.5 0 0")
    ahead = NOW + 300
    path = run / "monitor" / "slurm-7.n2.progress"
    path.write_text(f"{ahead}\t@1 9 compute {ahead - 1} 1.0 1 1.0 0.5 0 0\n", encoding="utf-8")
    os.utime(path, (NOW, NOW))
    ranks = progress.read_ranks(run, 7, now=NOW)
    assert [progress.clock_is_wrong(one) for one in ranks] == [False, True]
    assert progress.stall(ranks) is None
    files = [str(one) for one in sorted((run / "monitor").iterdir())]
    said = "".join(f"@mtime {NOW:.0f} {name}\n" for name in files) + shell.run(["tail", "-v", "-n", "1", *files]).stdout
    argv = ["awk", "-v", f"now={NOW + 200}", "-v", "since=0", "-v", "seconds=0", "-v", "least=0", "-f", str(AWK)]
    assert shell.run(argv, input=said).stdout.split() == ["furthest", "9"], (
        "nor when the line is old by the wrong clock"
    )


def observed(folder: Path, rule: str, phase: str, *, node: str = "n2", rank: str = "5") -> Path:
    """A run whose newest alarm is of what its ranks were seen to do; its evidence is gone."""
    run = shutil.copytree(WHY, folder / "stall-ended")
    shutil.rmtree(run / "state" / "stall-1")
    path = run / "state" / "events.jsonl"
    kept = list[str]()
    for line in path.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["event"] == "stall":
            event |= {
                "rule": rule,
                "rank": rank,
                "node": node,
                "step": "0",
                "phase": phase,
                "idle": "140",
                "waiting": "7",
            }
        kept.append(json.dumps(event))
    path.write_text("\n".join(kept) + "\n", encoding="utf-8")
    return run


def why(run: Path, *, ended: bool = True) -> Answer:
    (one,) = status.read_statuses([run], queue=lambda cluster: {})
    record = Record(status=one)
    found = explain(record) if ended else stall_rules.live(record)
    assert found is not None
    return found


def test_an_observed_stall_is_explained_by_the_evidence_of_all_ranks(tmp_path: Path) -> None:
    """No rank reports anything: the culprit's line, and what the others wait in, come from their stacks."""
    run = observed(tmp_path, "observed-stall", "lock:save(train.py:12)")
    for old in run.glob("monitor/*"):
        old.unlink()
    for rank in range(8):
        rank_file(run, rank, SUM if rank != 5 else "save@/w/train.py")
    found = why(run)
    assert found.rule == "stall-elsewhere"
    assert "it was ended: rank 5 (n2) is in save (train.py:12); 7 ranks wait for it in all_reduce" in found.line


def test_a_rank_that_has_ended_is_named_though_it_gives_no_evidence(tmp_path: Path) -> None:
    run = observed(tmp_path, "observed-stall", "gone:-")
    for rank in range(8):
        if rank != 5:
            rank_file(run, rank, SUM)
    found = why(run)
    assert found.rule == "observed-stall"
    assert "rank 5 on n2 has been gone for 140 s" in found.line
    assert "7 ranks wait" in found.line


def test_a_dead_node_is_named_unless_it_gave_evidence(tmp_path: Path) -> None:
    run = observed(tmp_path, "observed-node", "-", rank="0")
    for rank in range(4):
        rank_file(run, rank, SUM)
    (run / "state" / "stall-1" / "complete").touch()
    found = why(run)
    assert (found.rule, found.verdict) == ("observed-node", "bad node")
    assert "node n2 has given no sign of life for 140 s; 7 ranks are on other nodes" in found.line
    assert "slurm.exclude=n2" in why(run, ended=False).next
    (run / "state" / "stall-1" / "node-n2.txt").touch()
    assert why(run, ended=False).rule != "stall-unreachable"


def test_what_may_be_slow_is_called_so(tmp_path: Path) -> None:
    run = observed(tmp_path, "observed-slow", "sleep:nap(train.py:12)")
    assert why(run, ended=False).line.startswith(
        "it may be slow: rank 5 on n2 has been elsewhere (sleep:nap(train.py:12))"
    )
    for rank in range(8):
        rank_file(run, rank, SUM if rank != 5 else "nap@/w/train.py")
    found = why(run, ended=False)
    assert found.line == "it may be slow: rank 5 (n2) is in nap (train.py:12); 7 ranks wait for it in all_reduce"
