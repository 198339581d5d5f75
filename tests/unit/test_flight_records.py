"""Dumps of torch's flight recorder are read, and never run.

The files in flight_records/ are what torch 2.14 wrote (`_dump_fr_trace`) on four ranks over gloo, where rank 2 stayed away from the
last all_reduce, and ranks 0 and 1 had a group of their own.
"""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import pytest

from kit.health import flight_records
from kit.health.run_record import Record
from kit.health.why import explain
from kit.hosts import status
from tests.support import REPO
from tests.unit.test_health import answered

RECORDED = REPO / "tests" / "unit" / "flight_records"


@pytest.mark.parametrize("rank", range(4))
def test_a_dump_of_torch_is_read_as_pickle_would(rank: int) -> None:
    content = (RECORDED / f"collectives-{rank}").read_bytes()
    assert flight_records.plain_value(content) == pickle.loads(content)


@pytest.mark.parametrize("protocol", [2, 3])
def test_plain_values_of_python_are_read(protocol: int) -> None:
    value = {
        "a": [1, -1, 300, 70000, -(1 << 40), 1.5, None, True, False],
        "b": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
    }
    assert flight_records.plain_value(pickle.dumps(value, protocol=protocol)) == value


class Runs:
    """Whose pickle makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_runs_something_is_refused(tmp_path: Path, protocol: int) -> None:
    content = pickle.dumps({"entries": [Runs(tmp_path / "ran")]}, protocol=protocol)
    with pytest.raises(ValueError):
        flight_records.plain_value(content)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"", b".", b"\x80\x02", b"\x80\x02]q", b"\x80\x02e.", b"\x80\x02]e.", b"\x80\x02(N.", b"\x80\x02h\x05.",
        b"\x80\x02r\xff\xff\xff\x7f.", b"\x80\x02X\xff\xff\xff\xffa.", b"\x80\x02\x86.", b"\x80\x02NNs.", b"\x80\x02}]Ns.",
        b"\x80\x02}(Nu.", b"\x80\x02NN.", b"\x80\x63N.", b"a", b"s", b"t",
    ],
)  # fmt: skip
def test_damaged_pickles_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError):
        flight_records.plain_value(content)


def test_a_dump_of_millions_of_values_is_refused() -> None:
    """Of 64 MB of empty lists, Python would make 4 GB."""
    with pytest.raises(ValueError, match="opcode b']' at byte 2000001"):
        flight_records.plain_value(b"\x80\x02" + b"]" * 3_000_000 + b".")


def test_values_that_contain_themselves_are_not_followed() -> None:
    """As JSON, a list of two lists that are one, sixty deep, would have 2**60 numbers."""
    deep: list[object] = [1]
    for _ in range(60):
        deep = [deep, deep]
    itself: list[object] = []
    itself.append(itself)
    entry = {"process_group": (deep, ""), "collective_seq_id": 1, "profiling_name": "nccl:all_reduce"}
    dump = {"entries": [{**entry, "input_dtypes": deep, "input_sizes": [deep, itself, [3, 4]]}]}
    (one,) = flight_records.calls_of(flight_records.plain_value(pickle.dumps(dump, protocol=2)))
    assert (one.group, one.what) == ("?", "all_reduce #1 of ?,? [[],[],[3,4]]")


def test_a_dump_that_is_cut_off_anywhere_is_refused() -> None:
    content = (RECORDED / "collectives-0").read_bytes()
    for size in range(len(content)):
        with pytest.raises(ValueError):
            flight_records.plain_value(content[:size])


def dumped(run: Path, start: str = "failures-0/train-0") -> Path:
    return Path(shutil.copytree(RECORDED, run / "state" / start, dirs_exist_ok=True))


def test_the_rank_that_did_not_come_is_behind(tmp_path: Path) -> None:
    dumped(tmp_path)
    dumps = flight_records.read_dumps(tmp_path, "")
    assert sorted(dumps.calls) == [0, 1, 2, 3]
    assert dumps.files[2] == "state/failures-0/train-0/collectives-2"
    found = dumps.odd()
    assert found is not None
    odd, ranks = found
    assert (odd.how, ranks, odd.own.what) == ("behind", [2], "barrier #4 of - []")
    assert (odd.others.what, odd.others.waits) == ("all_reduce #5 of Float [[7]]", True)


def test_the_last_start_of_the_role_counts_and_damaged_files_do_not(tmp_path: Path) -> None:
    dumped(tmp_path, "failures-0/trainer-3")
    last = dumped(tmp_path, "failures-1/trainer-10")
    dumped(tmp_path, "failures-1/trainer-9")
    dumped(tmp_path, "failures-1/other-11")
    (last / "collectives-1").write_bytes(b"\x80\x02cos\nsystem\n.")
    (last / "collectives-3").write_bytes(pickle.dumps({"entries": 5}, protocol=2))
    (last / "collectives-new").write_bytes(b"x")
    dumps = flight_records.read_dumps(tmp_path, "trainer")
    assert dumps.files == {rank: f"state/failures-1/trainer-10/collectives-{rank}" for rank in (0, 2)}
    assert flight_records.read_dumps(tmp_path / "none", "").calls == {}


def test_entries_of_another_form_are_left_out() -> None:
    good = {"process_group": ("0", "default"), "collective_seq_id": 1, "profiling_name": "nccl:all_reduce"}
    odd = [None, {}, {**good, "is_p2p": True}, {**good, "process_group": []}, {**good, "collective_seq_id": "1"}]
    (one,) = flight_records.calls_of({"entries": [*odd, {**good, "input_dtypes": 5, "input_sizes": [[3]]}]})
    assert (one.what, one.waits) == ("all_reduce #1 of - [[3]]", True)
    with pytest.raises(ValueError):
        flight_records.calls_of([])


def test_kit_why_names_the_rank_that_did_not_come(tmp_path: Path) -> None:
    """A run that NCCL's time-out ended: without dumps, only the rank that waited is known."""
    before = answered("nccl-timeout", tmp_path / "before")
    assert before.line.startswith(
        "rank 0 on n1 failed first: it waited 600000 ms for the other ranks in ALLREDUCE #4411"
    )
    case = Path(shutil.copytree(REPO / "tests" / "why" / "nccl-timeout", tmp_path / "nccl-timeout"))
    (case / "logs" / "rank-2.log").write_text(
        "2026-11-22T13:05:30+0000 n2: rank 2 of 4: node rank 1, local rank 0, restart 0\n"
    )
    dumped(case)
    (one,) = status.read_statuses([case], queue=lambda cluster: {})
    found = explain(Record(status=one))
    assert found.rule == "nccl-timeout"
    assert found.line.startswith(
        "rank 2 on n2 did not come to all_reduce #5 of Float [[7]], which 3 others called; its last was barrier #4 of - []; "
        "rank 0 on n1, the first to end: it waited"
    )
    assert found.evidence[0].file == "state/failures-0/train-0/collectives-2"
