"""Stalls of thousands of ranks: the same verdict as with few, in bounded work, and no rank is silent because it was not read."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from kit.files import untrusted_files
from kit.health import collectives, progress, stall_evidence
from kit.health.answer import Answer
from kit.health.collectives import Collective
from kit.health.run_record import Record
from kit.health.why import explain
from kit.hosts import status
from tests.support import REPO
from tests.unit.test_stall import NOW, SUM, judged, looks, rank_file

WHY = REPO / "tests" / "why" / "stall-ended"
A_NODE = 8


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that was ended because its ranks stood still; none of them has left reports or evidence yet."""
    folder = shutil.copytree(WHY, tmp_path / "stall-ended")
    shutil.rmtree(folder / "state" / "stall-1")
    (folder / "state" / "stall-1").mkdir()
    (folder / "state" / "stall-1" / "complete").touch()
    for old in folder.glob("monitor/*.progress"):
        old.unlink()
    return folder


def report(run: Path, ranks: int, *, a_node: int = A_NODE, ended: frozenset[int] = frozenset()) -> None:
    """The collectors' last lines."""
    job = json.loads((run / "manifest.json").read_text())["job_id"]
    now = time.time() + 60
    for node in range(ranks // a_node):
        numbers = range(node * a_node, (node + 1) * a_node)
        lines = "\t".join(
            f"@{rank} 5 {'end' if rank in ended else 'communicate'} {now} 1.0 1 1.0 0.9 0 0" for rank in numbers
        )
        (run / "monitor" / f"slurm-{job}.n{node}.progress").write_text(f"{now}\t{lines}\n", encoding="utf-8")


def evidence(run: Path, ranks: int, stopped: int) -> None:
    """Evidence of every rank; one of them is stopped."""
    folder = run / "state" / "stall-1"
    rank_file(run, 0, SUM)
    text = (folder / "rank-0.txt").read_text()
    for rank in range(ranks):
        one = text.replace("rank 0\n", f"rank {rank}\n").replace("node n0\n", f"node n{rank // A_NODE}\n")
        one = one.replace("7 S 0 futex_do_wait", "7 T 0 do_signal_stop") if rank == stopped else one
        (folder / f"rank-{rank}.txt").write_text(one)


def answer(run: Path) -> Answer:
    (one,) = status.read_statuses([run], queue=lambda cluster: {})
    return explain(Record(status=one))


@pytest.mark.parametrize(("ranks", "culprit"), [(2_000, 37), (2_000, 1_999), (10_000, 9_999)])
def test_of_thousands_of_ranks_the_stopped_one_is_named(
    run: Path, ranks: int, culprit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first 1,024 files in the order of their names were read; nodes of all others were "bad"."""
    report(run, ranks)
    evidence(run, ranks, culprit)
    read: list[str] = []
    really = untrusted_files.read_bytes

    def counted(path: str | Path, **most: int) -> bytes:
        read.append(Path(path).name)
        return really(path, **most)

    monkeypatch.setattr(untrusted_files, "read_bytes", counted)
    found = answer(run)
    assert found.rule == "stall-stopped", found
    assert f"rank {culprit} (n{culprit // A_NODE}) is stopped" in found.line
    assert f"{ranks - 1} ranks wait for it" in found.line
    assert len([name for name in read if name.startswith("rank-")]) == ranks, "each file once"


def test_who_is_not_read_has_not_been_silent(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report(run, 2_000)
    evidence(run, 2_000, stopped=-1)
    monkeypatch.setattr(stall_evidence, "_MOST_RANKS", 100)
    found = answer(run)
    assert found.rule not in {"stall-unreachable", "stall-unanswered"}, found
    evidence(run, 2_000, stopped=1_500)
    told = stall_evidence.read_evidence(run, run / "state" / "stall-1", first=("", "1500"))
    assert (len(told.ranks), len(told.answered)) == (100, 2_000)
    assert told.ranks[-1].rank == 1_500, "the rank that the reports name is read first"


def test_what_is_kept_of_ten_thousand_ranks_is_mostly_what_they_have_in_common(run: Path) -> None:
    """A stack of a hundred frames for each; each line of it is kept once."""
    frames = " ".join(f"layer_{n}@/workspace/a_model_of_many_files/part_{n}.py" for n in range(100))
    rank_file(run, 0, frames)
    text = (run / "state" / "stall-1" / "rank-0.txt").read_text()
    for rank in range(1_000):
        (run / "state" / "stall-1" / f"rank-{rank}.txt").write_text(text.replace("rank 0\n", f"rank {rank}\n"))
    tracemalloc.start()
    told = stall_evidence.read_evidence(run, run / "state" / "stall-1")
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(told.ranks) == 1_000
    assert kept < 1_000 * len(text) / 2, f"{kept / 1e6:.1f} MB of {len(text) / 1e3:.1f} MB"


def test_a_node_whose_ranks_have_ended_is_not_bad(run: Path) -> None:
    """Rank 2 was stopped, and the ranks of n0 had done their work: n0 has no rank that could give evidence."""
    report(run, 4, a_node=2, ended=frozenset({0, 1}))
    rank_file(run, 2, SUM, state="T", wchan="do_signal_stop")
    rank_file(run, 3, SUM)
    found = answer(run)
    assert found.rule == "stall-stopped", found
    assert "rank 2 (n1) is stopped" in found.line
    rank_file(run, 2, SUM)
    assert answer(run).rule != "stall-unreachable"


def test_a_node_that_gave_its_own_evidence_is_not_bad(run: Path) -> None:
    """Its ranks could not be looked into, and their reports are from before."""
    report(run, 4, a_node=2)
    rank_file(run, 2, SUM)
    rank_file(run, 3, SUM)
    assert answer(run).rule == "stall-unreachable"
    (run / "state" / "stall-1" / "node-n0.txt").write_text("== node\nnode n0\n")
    assert answer(run).rule != "stall-unreachable"


def test_where_most_nodes_gave_no_evidence_none_of_them_is_bad(run: Path) -> None:
    report(run, 6, a_node=2)
    rank_file(run, 0, SUM)
    rank_file(run, 1, SUM)
    found = answer(run)
    assert (found.rule, found.verdict) == ("stall-unanswered", "try again"), found
    assert "unknown: 2 nodes gave no evidence when it was gathered, and 1 did" in found.line


def test_ranks_are_not_compared_with_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a save of 3,000 ranks each was looked for in a list of all."""
    known: dict[str, Any] = {"role": "", "step": 9, "took": 1.0, "every": 1, "age": 1.0}
    ranks = [
        progress.RankProgress(rank=n, node="n", phase="save", idle=900.0 if n else 1.0, slowest=2.0, **known)
        for n in range(3_000)
    ]
    compared: list[object] = []
    really = progress.RankProgress.__eq__

    def counted(one: progress.RankProgress, other: object) -> bool:
        compared.append(other)
        return really(one, other)

    monkeypatch.setattr(progress.RankProgress, "__eq__", counted)
    progress.stall(ranks)
    assert len(compared) < len(ranks)


def test_calls_of_many_groups_are_looked_at_once() -> None:
    looked: list[int] = []

    class Calls(list[Collective]):
        def __iter__(self) -> Any:
            looked.append(1)
            return super().__iter__()

    ranks = [
        Calls(
            Collective(group=f"g{n // 8}", number=k, name="all_reduce", kind="f", sizes="[1]", waits=False, line=k)
            for k in range(3 if n != 77 else 2)
        )
        for n in range(800)
    ]
    found = collectives.odd(ranks)
    assert found is not None
    assert found.places == (77,)
    assert len(looked) == len(ranks)


@pytest.mark.parametrize("ranks", [2_000, 10_001])
def test_the_nodes_judge_thousands_of_ranks_as_the_commands_do(tmp_path: Path, ranks: int) -> None:
    """Steps of very different lengths, in falling order, so that the limit depends on their median."""
    nodes: dict[str, str] = {}
    for first in range(0, ranks, 500):
        reports = (
            f"@{rank} {9 if rank else 8} compute {NOW - 2 * (rank % 600)} {60 * (ranks - rank) / ranks:.6f} 1 1.0 0 0 0"
            for rank in range(first, min(first + 500, ranks))
        )
        nodes[f"n{first}"] = "\t".join(reports)
    run = looks(tmp_path, **nodes)
    found = progress.stall(progress.read_ranks(run, 7, now=NOW))
    assert found is not None
    assert ranks / 4 < len(found.stalled) < ranks
    (rule, _, _, _, _, _, _, _, count, _) = judged(run)[1]
    assert (rule, int(count)) == (found.rule.id, len(found.stalled))


def test_forty_thousand_ranks_are_judged_between_two_looks(tmp_path: Path) -> None:
    """An insertion sort takes 800 million steps, and the next look comes after five seconds."""
    looked = {
        f"n{node}": "\t".join(
            f"@{node * 1000 + rank} 9 compute {NOW} {41_000 - node * 1000 - rank} 1 1.0 0 0 0" for rank in range(1000)
        )
        for node in range(40)
    }
    assert judged(looks(tmp_path, **looked), most_s=30) == [["furthest", "9"]]


@pytest.mark.parametrize("ranks", [2_000, 10_000])
def test_top_shows_the_rank_that_thousands_wait_for(run: Path, ranks: int) -> None:
    """The live table of all ranks began with rank 0, and a screen has fifty lines."""
    from kit.cli import top  # at the head of this file, test_reference.py in the same process would see other options

    job = json.loads((run / "manifest.json").read_text())["job_id"]
    now = time.time()
    late = ranks - 3
    for node in range(ranks // A_NODE):
        lines = "\t".join(
            f"@{rank} {4 if rank == late else 5} {'data' if rank == late else 'communicate'} {now - 600} 1.0 1 1.0 0.9 0 0"
            for rank in range(node * A_NODE, (node + 1) * A_NODE)
        )
        (run / "monitor" / f"slurm-{job}.n{node}.progress").write_text(f"{now}\t{lines}\n", encoding="utf-8")
    (one,) = status.read_statuses([run], queue=lambda cluster: {})
    table = top._table(dataclasses.replace(one, state="RUNNING"))
    assert (next(iter(table.columns[0].cells)), next(iter(table.columns[6].cells))) == (str(late), "others wait for it")
    assert table.row_count == 200
    assert table.caption == f"{ranks - 200} more ranks: kit top --once"
