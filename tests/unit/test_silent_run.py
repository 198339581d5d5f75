"""`kit why` of a running job that says nothing: one look at its ranks names the one that the others wait for."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kit.answers import explain_run
from kit.errors import ToolError
from kit.health import silence
from kit.health.rules import stall_rules
from kit.health.run_record import Record
from kit.sessions import stacks
from tests.unit.test_last_step import record, run_with

REDUCES = "    all_reduce (/opt/torch/distributed/distributed_c10d.py:2810)\n    communicate (/workspace/train.py:80)\n"


def evidence(rank: int, frames: str, *, state: str = "S", cpu: int = 0, wchan: str = "futex_do_wait") -> str:
    """What evidence.sh writes of a rank."""
    return (
        f"== rank\nrank {rank}\nrole \nnode n{rank // 2}\ntime 1.0\nreport -\n"
        f"== processes\n5{rank} {state} {cpu} {wchan} python train.py\n"
        f'== stacks\nProcess 5{rank}: python train.py\nThread 5{rank} (idle): "MainThread"\n{frames}'
    )


def all_of(sick: str, *, ranks: int = 4) -> dict[str, str]:
    """Rank 1 has the evidence `sick`, and the others wait in a collective."""
    return {f"rank-{rank}.txt": sick if rank == 1 else evidence(rank, REDUCES) for rank in range(ranks)}


COMPUTES = "    compute (/workspace/train.py:41)\n"


@pytest.mark.parametrize(
    ("sick", "rule", "line"),
    [
        (evidence(1, COMPUTES), "observed-slow",
         "it may be slow: rank 1 (n0) is in compute (train.py:41); 3 ranks wait for it in all_reduce"),
        (evidence(1, COMPUTES, cpu=97, state="R"), "observed-slow", "it may be slow: rank 1 (n0) runs in compute (train.py:41)"),
        (evidence(1, COMPUTES, state="T"), "stall-stopped", "rank 1 (n0) is stopped"),
        (evidence(1, COMPUTES, state="D", wchan="nfs_wait"), "stall-kernel", "rank 1 (n0) waits in the kernel (nfs_wait)"),
    ],
)  # fmt: skip
def test_the_rank_that_is_elsewhere_is_named(tmp_path: Path, sick: str, rule: str, line: str) -> None:
    found = stall_rules.looked_at(record(run_with(tmp_path)), all_of(sick))
    assert found is not None
    assert (found.rule, found.line[: len(line)]) == (rule, line)
    assert found.evidence[0].file == "kit stacks"
    assert found.evidence[0].text.startswith("rank-1.txt: ")
    assert rule != "observed-slow" or found.verdict == "try again"


@pytest.mark.parametrize(
    "texts",
    [
        {},
        {"rank-0.txt": evidence(0, COMPUTES)},
        {f"rank-{rank}.txt": evidence(rank, COMPUTES) for rank in range(4)},
        {f"rank-{rank}.txt": evidence(rank, REDUCES) for rank in range(4)},
        # Half of them work: who waits for whom is not known.
        {f"rank-{rank}.txt": evidence(rank, REDUCES if rank == 0 else COMPUTES) for rank in range(4)},
        # On a full disk.
        {"rank-0.txt": "", "node-n0.txt": "== node\nnode n0\n"},
        # No rank is in a collective: each may do its own work.
        {f"rank-{rank}.txt": evidence(rank, COMPUTES if rank else "    load (/workspace/train.py:9)\n") for rank in range(4)},
    ],
    ids=["none", "one", "all work", "all wait", "most work", "cut off", "no collective"],
)  # fmt: skip
def test_where_none_is_apart_none_is_named(tmp_path: Path, texts: dict[str, str]) -> None:
    assert stall_rules.looked_at(record(run_with(tmp_path)), texts) is None


def silent(run: Path) -> Record:
    """The record of a run whose logs are from long ago, and whose ranks began before that."""
    events = run / "state" / "events.jsonl"
    lines = [json.loads(line) for line in events.read_text(encoding="utf-8").splitlines()]
    lines = [{**one, **({"epoch": "1000.0"} if one["event"] == "attempt" else {})} for one in lines]
    events.write_text("".join(f"{json.dumps(one)}\n" for one in lines), encoding="utf-8")
    for log in run.glob("logs/*.log"):
        os.utime(log, (2000, 2000))
    for reports in run.glob("monitor/*.progress"):
        reports.unlink()
    return record(run)


def test_silence_is_a_minute_without_a_line_of_a_program_that_reports_nothing(tmp_path: Path) -> None:
    one = silent(run_with(tmp_path))
    assert silence.seconds(one, now=2090.0) == 90.0
    assert silence.seconds(one, now=2059.0) is None
    for log in one.run_dir.glob("logs/rank-*.log"):
        log.unlink()
    assert silence.seconds(one, now=2090.0) is None


@pytest.mark.parametrize("answers", [True, False])
def test_kit_why_looks_at_the_ranks_of_a_silent_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    one = silent(run_with(tmp_path)).status

    def gather(*_words: object, **_options: object) -> dict[str, str]:
        if not answers:
            raise ToolError("srun: Access denied")
        return all_of(evidence(1, COMPUTES))

    monkeypatch.setattr(stacks, "gather", gather)
    plain = explain_run.explain(one)
    said = list[str]()
    found = explain_run.looked(one, plain, say=said.append)
    assert "looking at its ranks" in said[0]
    assert found.rule == ("observed-slow" if answers else "running")
    assert answers or found == plain


def test_kit_why_leaves_a_job_alone_that_says_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_with(tmp_path)
    silent(run)
    (run / "logs" / "rank-0.log").touch()
    monkeypatch.setattr(stacks, "gather", lambda *_words, **_options: pytest.fail("no step is due"))
    one = record(run).status
    plain = explain_run.explain(one)
    assert explain_run.looked(one, plain, say=print) is plain
