"""kit stacks of many ranks: ranks with one stack are one group, and the odd rank is the last thing that is shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from kit.cli import app
from kit.health import stack_groups
from kit.sessions import stacks
from tests.unit.test_stall import BROADCAST, SUM, WHY, rank_file


def texts(folder: Path, ranks: int, odd: int, *, state: str = "S", frames: str = BROADCAST) -> dict[str, str]:
    """Evidence of every rank, in which process numbers differ as they do; one of them is elsewhere."""
    rank_file(folder, 0, SUM)
    rank_file(folder, 1, frames, state=state)
    usual, other = ((folder / f"state/stall-1/rank-{rank}.txt").read_text() for rank in (0, 1))
    return {
        f"rank-{rank}.txt": (other if rank == odd else usual).replace("7 ", f"{rank + 50} ") for rank in range(ranks)
    }


@pytest.mark.parametrize("ranks", [2_000, 10_000])
def test_thousands_of_ranks_are_two_groups(tmp_path: Path, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = texts(tmp_path, ranks, odd=37)
    monkeypatch.setattr(stacks, "gather", lambda *_, **__: found)
    run = str(WHY)
    done = CliRunner().invoke(app, ["stacks", run])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert [line for line in lines if line.startswith("==>")] == [
        f"==> {ranks - 1} ranks: 0-36,38-{ranks - 1} <==",
        "==> 1 rank: 37 <==",
    ]
    assert lines.count("all_reduce (distributed_c10d.py:12)") == 1
    assert lines[-1].endswith("--rank 37")
    assert len(lines) < 20
    whole = CliRunner().invoke(app, ["stacks", run, "--all"]).output.splitlines()
    assert len([line for line in whole if line.startswith("==>")]) == ranks


def test_a_rank_that_is_stopped_is_a_group_of_its_own(tmp_path: Path) -> None:
    groups = stack_groups.group_ranks(texts(tmp_path, 12, odd=5, state="T", frames=SUM))
    assert [len(group.ranks) for group in groups] == [11, 1]
    assert groups[1].ranks == (5,)
    assert groups[1].lines[0] == "state T in futex_do_wait"


def test_roles_are_apart_and_a_rank_without_a_stack_says_where_it_waits(tmp_path: Path) -> None:
    found = texts(tmp_path, 4, odd=-1)
    found = {f"{role}/{name}": text for role in ("server", "trainer") for name, text in found.items()}
    found["server/rank-4.txt"] = "== rank\nrank 4\n== processes\n9 S 0 do_epoll_wait /usr/bin/vllm serve\n"
    found["node-n9.txt"] = "== node\nnode n9\n"
    groups = stack_groups.group_ranks(found)
    assert [(group.role, group.ranks) for group in groups] == [
        ("server", (0, 1, 2, 3)),
        ("trainer", (0, 1, 2, 3)),
        ("server", (4,)),
    ]
    assert groups[2].lines == ("no Python stack: /usr/bin/vllm serve, state S in do_epoll_wait",)
