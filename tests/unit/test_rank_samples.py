"""rank_samples.awk finds the rank that the others wait for, or the dead node, from samples of programs that report nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kit import shell
from tests import laid_out

AWK = laid_out.LIB / "rank_samples.awk"
NOW = 100_000
SUM = "collective train(program.py:9) all_reduce"


def rank(number: int, kind: str = SUM, *, idle: int = 200, cpu: int = 0, role: str = "") -> str:
    """A rank's words in a line of sample-ranks.sh. kind: KIND PLACE WHAT."""
    word, place, what = kind.split(" ")
    return f"{role}@{number} {NOW - idle} {cpu} {word} {place} {what}"


def judged(
    folder: Path,
    *nodes: list[str],
    silent: tuple[int, ...] = (),
    limit: int = 120,
    reported: bool = False,
    cut: bool = False,
) -> list[str]:
    """The words that rank_samples.awk prints for these lines of the nodes n1, n2, …; silent: nodes whose files are a minute old."""
    files = []
    for number, ranks in enumerate(nodes, start=1):
        path = folder / f"slurm-7.n{number}.samples"
        line = "\t".join([f"{NOW} {len(ranks)}", *ranks, "."])
        path.write_text(line[: -3 if cut else None], encoding="utf-8")
        at = NOW - 60 * (number in silent)
        os.utime(path, (at, at))
        files.append(str(path))
    said = shell.run(["tail", "-v", "-n", "1", "--", *files]).stdout
    said += "\n" + shell.run(["stat", "--format=@mtime %Y %n", "--", *files]).stdout
    names = " ".join(f"n{number}" for number in range(1, len(nodes) + 1))
    values = {"nodes": f" {names} ", "limit": limit, "reported": int(reported)}
    argv = ["awk", *(word for name, value in values.items() for word in ("-v", f"{name}={value}")), "-f", str(AWK)]
    return shell.run(argv, input=said).stdout.split()


@pytest.mark.parametrize(
    ("odd", "rule"),
    [
        ("stopped work(program.py:3) do_signal_stop", "observed-stall"),
        ("disk read(program.py:3) folio_wait_bit", "observed-stall"),
        ("gone - -", "observed-stall"),
        ("lock save(program.py:3) futex_do_wait", "observed-stall"),
        ("loader load(program.py:3) futex_do_wait", "observed-stall"),
        ("collective train(program.py:7) broadcast", "observed-stall"),
        ("sleep nap(program.py:3) hrtimer_nanosleep", "observed-slow"),
        ("network ask(program.py:3) sk_wait_data", "observed-slow"),
        ("child build(program.py:3) do_wait", "observed-slow"),
    ],
    ids=lambda text: text.split(" ")[0],
)
def test_the_rank_that_the_others_wait_for(tmp_path: Path, odd: str, rule: str) -> None:
    found = judged(tmp_path, [rank(0), rank(1)], [rank(2), rank(3, odd)])
    kind, place, what = odd.split(" ")
    shown = what if kind == "collective" or place == "-" else place
    assert found == [rule, "-", "3", "n2", "0", f"{kind}:{shown}", "200", "3", "4", "-"]


BUSY = "busy compile(program.py:3) 0"
SLEEP = "sleep nap(program.py:3) hrtimer_nanosleep"


@pytest.mark.parametrize(
    "ranks",
    [
        [rank(0, BUSY, idle=5, cpu=90), rank(1), rank(2), rank(3)],
        [rank(0, "disk save(program.py:3) folio_wait_bit", idle=5), rank(1), rank(2), rank(3)],
        [rank(n, BUSY, idle=1200, cpu=90) for n in range(4)],
        [rank(n, SLEEP, idle=1200) for n in range(4)],
        [rank(n, "stopped nap(program.py:3) do_signal_stop") for n in range(4)],
        [rank(n, idle=1200) for n in range(4)],
        [rank(0, BUSY, idle=200, cpu=90), rank(1), rank(2), rank(3)],
        [rank(0, SLEEP), rank(1, idle=60), rank(2), rank(3)],
        [rank(0, "stopped nap(program.py:3) do_signal_stop"), *(rank(n, BUSY, idle=9, cpu=90) for n in range(1, 4))],
        [rank(n, f"busy stage{n}(program.py:3) 0", idle=1200, cpu=90) for n in range(4)],
        [rank(0, SLEEP, idle=1200)],
    ],
    ids=[
        "evaluation on rank 0",
        "a checkpoint of rank 0 that writes",
        "all compile",
        "all sleep",
        "all are stopped, as by scontrol suspend",
        "all wait in one collective",
        "a loop that was seen at one place three times",
        "one has only just begun to wait",
        "the others work",
        "each stage of a pipeline has its own place",
        "one rank",
    ],
)
def test_slow_work_is_no_alarm(tmp_path: Path, ranks: list[str]) -> None:
    assert judged(tmp_path, ranks[:2], ranks[2:]) == []


def test_long_work_of_one_rank_is_called_slow_and_no_more(tmp_path: Path) -> None:
    ranks = [rank(0, BUSY, idle=1200, cpu=90), rank(1, idle=1200), rank(2, idle=1200)]
    assert judged(tmp_path, ranks)[0] == "observed-slow"
    waits = [rank(0, "lock ask(program.py:3) futex_do_wait", idle=1200)]
    waits += [rank(n, "busy simulate(program.py:9) 0", idle=1200, cpu=90) for n in (1, 2)]
    assert judged(tmp_path, waits)[0] == "observed-slow", "a coordinator that waits for those that work"
    early = [rank(0, "gone - -", idle=1200), *(rank(n, BUSY, idle=1200, cpu=90) for n in (1, 2))]
    assert judged(tmp_path, early)[0] == "observed-slow", "it had less to do"


def test_ranks_without_stacks_are_told_apart_by_what_the_kernel_says(tmp_path: Path) -> None:
    waits = [rank(n, "lock - futex_do_wait") for n in range(3)]
    found = judged(tmp_path, [*waits, rank(3, "sleep - hrtimer_nanosleep")])
    assert found[:6] == ["observed-slow", "-", "3", "n1", "0", "sleep:hrtimer_nanosleep"]
    found = judged(tmp_path, [*waits, rank(3, "disk - folio_wait_bit")])
    assert found[:6] == ["observed-stall", "-", "3", "n1", "0", "disk:folio_wait_bit"]


def test_a_rank_that_came_back_on_another_node_has_not_ended(tmp_path: Path) -> None:
    assert judged(tmp_path, [rank(0), rank(1)], [rank(2), rank(3, "gone - -")], [rank(3)]) == []


def test_roles_are_judged_one_by_one(tmp_path: Path) -> None:
    moves = [rank(n, BUSY, idle=1, cpu=90, role="actor") for n in range(2)]
    trainer = [rank(0, role="trainer"), rank(1, "lock save(program.py:3) futex_do_wait", role="trainer")]
    assert judged(tmp_path, moves, trainer)[:4] == ["observed-stall", "trainer", "1", "n2"]


@pytest.mark.parametrize(("silent", "found"), [((2,), True), ((1, 2), False), ((1, 2, 3), False), ((), False)])
def test_a_dead_node_is_found_by_its_silence(tmp_path: Path, silent: tuple[int, ...], found: bool) -> None:
    """Whatever the ranks do and report; where most nodes are silent, the fault is not theirs."""
    works = [[rank(n, BUSY, idle=1, cpu=90)] for n in range(3)]
    for reported in (False, True):
        said = judged(tmp_path, *works, silent=silent, reported=reported)
        assert said == (["observed-node", "-", "0", "n2", "0", "-", "60", "2", "1", "-"] if found else [])


def test_what_ranks_report_is_judged_by_their_reports(tmp_path: Path) -> None:
    assert judged(tmp_path, [rank(0), rank(1, "lock save(program.py:3) futex_do_wait")], reported=True) == []


def test_a_line_that_was_cut_off_is_not_judged(tmp_path: Path) -> None:
    assert judged(tmp_path, [rank(0), rank(1, "stopped work(program.py:3) do_signal_stop")], cut=True) == ["unsure"]
