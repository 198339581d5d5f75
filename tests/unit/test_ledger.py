"""The ledger: every rank-second in one account, whatever the records hold."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.ledger import ledger, read_run
from kit.ledger.records import Event, Failure, RankProcess, Records, Reported
from kit.ledger.time_accounts import MEANINGS, Account
from tests.support import REPO

SPENT = dict.fromkeys(read_run.SPENT, 0.0)


def event(at: float, kind: str, attempt: int = 0, job: int = 7, /, **values: str) -> Event:
    return Event(at=at, name=kind, job_id=job, attempt=attempt, values=values)


def process(rank: int, attempt: int = 0, **values: Any) -> RankProcess:
    """Ten steps of a second, after four seconds of start and one of rendezvous."""
    spent = {**SPENT, "start": 4.0, "rendezvous": 1.0, "first": 2.0, "compute": 9.0, **values.pop("spent", {})}
    usual: dict[str, Any] = {
        "role": "", "node": f"n{rank // 2 + 1}", "looked": 130.0, "step": 10, "phase": "compute", "since": 130.0, "usual": 1.0,
        "began": 114.0, "worker": 112.0, "ended": 130.0, "first": 0,
    }  # fmt: skip
    return RankProcess(rank=rank, attempt=attempt, spent=spent, **{**usual, **values})


START = (
    event(105.0, "start", nodes="n[1-2]"),
    event(106.0, "phase", name="image"),
    event(107.0, "phase", name="preflight"),
    event(110.0, "attempt", nodes="n1,n2", spare="0"),
)


def accounts(records: Records) -> Mapping[Account, float]:
    """Rounded, and closed."""
    made = ledger.close(records)
    assert made.gap < 1e-9
    return {account: round(seconds, 6) for account, seconds in made.accounts.items()}


def run(*events: Event, **values: Any) -> Records:
    return Records(run_id="r", submitted=100.0, **{"world": {"": 2}, "ranks_per_node": 2, "events": events, **values})


def test_an_ordinary_run() -> None:
    """The second rank ends two seconds before the first; what is between its last step and its end is teardown."""
    early = process(1, ended=128.0, spent={"compute": 7.0})
    records = run(*START, event(131.0, "phase", name="teardown"), event(132.0, "end"), processes=(process(0), early))
    assert accounts(records) == {
        Account.QUEUE: 10.0,
        Account.SETUP: 2.0,
        Account.PREFLIGHT: 6.0,
        Account.IMAGE: 2.0 + 4.0,
        Account.START: 4.0 + 8.0,
        Account.RENDEZVOUS: 2.0,
        Account.FIRST_STEP: 4.0,
        Account.PRODUCTIVE: 16.0,
        Account.TEARDOWN: 2 * 2.0,
        Account.IDLE_END: 2.0,
    }


def test_the_teardown_lasts_until_all_steps_have_gone() -> None:
    """The `end` event is on record before the steps end, so that a killed batch script leaves its code."""
    records = run(
        *START, event(131.0, "phase", name="teardown"), event(132.0, "end"), processes=(process(0), process(1))
    )
    later = dataclasses.replace(records, closed=140.0)
    before, after = accounts(records), accounts(later)
    assert after[Account.TEARDOWN] - before[Account.TEARDOWN] == 2 * 8.0
    assert {a: s for a, s in after.items() if a is not Account.TEARDOWN} == {
        a: s for a, s in before.items() if a is not Account.TEARDOWN
    }
    assert accounts(dataclasses.replace(records, closed=120.0)) == before, "that of an earlier start"


def test_the_prolog_is_apart_where_slurm_tells_the_allocation() -> None:
    found = accounts(run(event(105.0, "start", allocated="103"), event(106.0, "end")))
    assert found == {Account.QUEUE: 6.0, Account.SETUP: 6.0}


def test_a_straggler_makes_the_others_wait() -> None:
    """Rank 0 communicates for a second, rank 1 waits four seconds more: that is the straggler's cost."""
    one = process(0, spent={"compute": 8.0, "communicate": 1.0})
    other = process(1, spent={"compute": 4.0, "communicate": 5.0})
    found = accounts(run(*START, event(130.0, "phase", name="teardown"), event(130.0, "end"), processes=(one, other)))
    assert found[Account.STRAGGLERS] == 4.0
    assert found[Account.PRODUCTIVE] == 14.0


def test_input_save_and_evaluation() -> None:
    spent = {"compute": 2.0, "data": 4.0, "save": 2.0, "evaluate": 1.0}
    both = tuple(process(rank, spent=spent) for rank in range(2))
    found = accounts(run(*START, event(130.0, "phase", name="teardown"), event(130.0, "end"), processes=both))
    assert (found[Account.INPUT], found[Account.SAVE], found[Account.EVALUATION]) == (8.0, 4.0, 2.0)


def test_a_death_costs_the_restart_and_the_steps_since_the_checkpoint() -> None:
    """Rank 1 dies at 130; the next attempt continues from step 6 of 10: four seconds a rank are lost."""
    first = tuple(process(rank, ended=0.0) for rank in range(2))
    second = tuple(
        process(rank, attempt=1, began=140.0, worker=138.0, ended=156.0, looked=156.0, since=156.0, step=15, first=6)
        for rank in range(2)
    )
    again = (
        event(133.0, "phase", name="teardown"),
        event(135.0, "attempt", 1, nodes="n1,n2", spare="0"),
        event(156.0, "phase", 1, name="teardown"),
        event(157.0, "end", 1),
    )
    failed = Failure(role="", rank=1, attempt=0, at=130.0)
    found = accounts(run(*START, *again, processes=(*first, *second), failures=(failed,)))
    made = 9.0 / 9  # the first of the ten is apart
    assert found[Account.LOST] == pytest.approx(2 * 4 * made)
    assert found[Account.RESTART] == 2 * 5.0
    assert found[Account.PRODUCTIVE] == pytest.approx(36.0 - 2 * 4 * made)


def test_a_group_that_comes_back_alone_ends_no_attempt() -> None:
    """Replica group 1 dies at 124 and is started again; the other one waits for it, and makes its steps."""
    world = {"replica-0": 1, "replica-1": 1}
    on = process(0, role="replica-0", spent={"compute": 4.0, "communicate": 5.0})
    spent = {"compute": 3.0, "communicate": 0.0}
    died = process(0, role="replica-1", node="n2", ended=0.0, step=4, since=124.0, looked=124.0, spent=spent)
    again = {"start": 1.0, "rendezvous": 0.0, "first": 1.0, "compute": 2.0}
    back = process(0, role="replica-1", node="n2", began=126.0, step=10, first=2, spent=again)
    failed = Failure(role="replica-1", rank=0, attempt=0, at=124.0, alone=True)
    over = (event(130.0, "phase", name="teardown"), event(130.0, "end"))
    roles = tuple(event(111.0, "role", role=role) for role in world)
    records = run(*START, *roles, *over, world=world, processes=(on, died, back), failures=(failed,))
    found = accounts(records)
    assert found[Account.RESTART] == 2.0
    assert found[Account.STRAGGLERS] == 5.0
    assert found[Account.LOST] == 2 * 1.0
    assert found[Account.RENDEZVOUS] == 2 * 1.0 + 1.0 + 1.0


def test_a_requeue_is_held() -> None:
    ended = (event(120.0, "phase", name="teardown"), event(121.0, "requeue"))
    events = (*START, *ended, event(141.0, "start", 1), event(150.0, "end", 1))
    found = accounts(run(*events))
    assert found[Account.HELD] == 40.0
    assert found[Account.PROGRAM] == 20.0


def test_a_lost_node_leaves_no_end() -> None:
    """The last report is the last sign of the allocation: what follows is the wait for another one."""
    both = tuple(process(rank, ended=0.0) for rank in range(2))
    found = accounts(run(*START, event(190.0, "start", 1), event(200.0, "end", 1), processes=both))
    assert found[Account.HELD] == 2 * 60.0


def test_an_attempt_after_the_jobs_end_is_in_no_second_account() -> None:
    """Two clocks that disagree: the attempt is recorded behind the requeue, and the next start is 400 s later."""
    first = (event(100.0, "start"), event(100.0, "requeue"), event(100.0, "attempt"))
    records = run(*first, event(501.0, "start", 1, allocated="500"), event(502.0, "end", 1))
    assert sum(accounts(records).values()) == pytest.approx(2 * 402.0)


def test_a_stall_is_no_step() -> None:
    """Nothing was reported for 50 s: a step takes one."""
    both = tuple(process(rank, ended=0.0, looked=180.0, since=130.0) for rank in range(2))
    events = (*START, event(180.0, "phase", name="teardown"), event(180.0, "end"))
    assert accounts(run(*events, processes=both))[Account.STALL] == 2 * 50.0


def test_what_follows_the_monitors_last_look_is_like_what_came_before() -> None:
    """A run that lives, and a report that is ten seconds old."""
    both = tuple(process(rank, ended=0.0, spent={"compute": 6.0, "data": 3.0}) for rank in range(2))
    found = accounts(run(*START, processes=both, now=139.0))
    assert found[Account.INPUT] == pytest.approx(2 * (3.0 + 3.0))
    assert found[Account.PRODUCTIVE] == pytest.approx(2 * (6.0 + 6.0))


def test_a_program_without_phases_is_split_by_its_metrics() -> None:
    told = Reported(attempt=0, began=115.0, first=118.0, last=128.0, save=2.0, evaluation=1.0)
    records = run(*START, event(130.0, "phase", name="teardown"), event(130.0, "end"), reported=(told,))
    found = accounts(records)
    assert (found[Account.SAVE], found[Account.EVALUATION], found[Account.PRODUCTIVE]) == (4.0, 2.0, 14.0)
    assert ledger.close(records).detail == "metrics"


def test_a_program_that_reports_nothing_is_one_amount_and_that_is_said() -> None:
    records = run(*START, event(130.0, "phase", name="teardown"), event(131.0, "end"))
    made = ledger.close(records)
    assert made.accounts[Account.PROGRAM] == 40.0
    assert made.detail == "events"
    assert any("kit_rank" in note for note in made.notes)


def test_spares_are_ranks_of_their_own() -> None:
    events = (START[0], event(110.0, "attempt", nodes="n1,n2", spare="1"), event(120.0, "end"))
    made = ledger.close(run(*events))
    assert made.accounts[Account.SPARE] == 15.0 * 2
    assert made.total == 20.0 * 2 + 30.0


def test_what_a_resumed_run_did_not_want_is_apart() -> None:
    """Ended at 110, resumed at 150: the forty seconds are nobody's queue."""
    events = (event(105.0, "start"), event(110.0, "end"), event(155.0, "start", 1, 8), event(160.0, "end", 1, 8))
    found = accounts(Records(run_id="r", submitted=150.0, world={"": 1}, events=events))
    assert found[Account.NOT_SUBMITTED] == 40.0
    assert found[Account.QUEUE] == 5.0


def test_a_run_that_waits_and_one_that_was_cancelled() -> None:
    assert accounts(run(now=130.0)) == {Account.QUEUE: 60.0}
    assert accounts(run(ended=110.0)) == {Account.QUEUE: 20.0}


def test_goodput_and_cost() -> None:
    """Half of the time in the queue; of the rest all in the program: two GPUs for 20 s."""
    made = ledger.close(run(event(120.0, "start"), event(120.0, "attempt"), event(140.0, "end"), gpus=2))
    assert (made.scheduling_goodput, made.runtime_goodput, made.goodput, made.ettr) == (0.5, 1.0, 0.5, 0.5)
    assert made.cost(3600.0) == 40.0
    assert made.cost_of(Account.PROGRAM, 3600.0) == 40.0
    assert made.cost_of(Account.QUEUE, 3600.0) == 0.0


def test_several_runs_together() -> None:
    made = ledger.close(run(event(120.0, "start"), event(120.0, "attempt"), event(140.0, "end")))
    both = ledger.together("s", [made, made])
    assert both.total == 2 * made.total
    assert both.gap < 1e-9
    assert both.goodput == made.goodput


TIMES = st.floats(min_value=0, max_value=1000, allow_nan=False)
NAMES = st.sampled_from(["start", "phase", "attempt", "requeue", "end", "signal", "ready"])
EVENTS = st.builds(
    event,
    TIMES,
    NAMES,
    st.integers(0, 3),
    name=st.sampled_from(["image", "preflight", "once", "teardown", "?"]),
    allocated=st.sampled_from(["", "x", "400"]),
    spare=st.sampled_from(["0", "1"]),
    nodes=st.sampled_from(["", "n1,n2"]),
)
PROCESSES = st.builds(
    process,
    st.integers(0, 3),
    st.integers(0, 3),
    looked=TIMES,
    step=st.integers(0, 50),
    phase=st.sampled_from(["start", "compute", "data", "communicate", "save", "?"]),
    since=TIMES,
    began=TIMES,
    worker=TIMES,
    ended=st.one_of(st.just(0.0), TIMES),
    first=st.one_of(st.none(), st.integers(0, 50)),
    usual=st.floats(0, 10),
    spent=st.fixed_dictionaries({key: st.floats(0, 400) for key in ("data", "compute", "communicate", "save")}),
)
FAILURES = st.builds(Failure, role=st.just(""), rank=st.integers(0, 3), attempt=st.integers(0, 3), at=TIMES)
REPORTED = st.builds(
    Reported, attempt=st.integers(0, 3), began=TIMES, first=TIMES, last=TIMES, save=TIMES, evaluation=TIMES
)


RECORDS = st.builds(
    Records,
    run_id=st.just("r"),
    submitted=TIMES,
    now=st.one_of(st.just(0.0), TIMES),
    world=st.integers(1, 4).map(lambda size: {"": size}),
    ranks_per_node=st.just(2),
    events=st.lists(EVENTS, max_size=12).map(tuple),
    processes=st.lists(PROCESSES, max_size=8).map(tuple),
    failures=st.lists(FAILURES, max_size=4).map(tuple),
    reported=st.lists(REPORTED, max_size=3).map(tuple),
)


@given(RECORDS)
def test_the_accounts_sum_to_wall_times_ranks(records: Records) -> None:
    """Whatever was recorded, in whatever order and with clocks that disagree; and no account is negative."""
    made = ledger.close(records)
    assert sum(made.accounts.values()) == pytest.approx(made.total, abs=1e-6)
    assert all(seconds > -1e-6 for share in made.shares for seconds in share.amounts.values())
    for key in ("attempt", "node", "rank"):
        assert sum(sum(of.values()) for of in made.by(key).values()) == pytest.approx(made.total, abs=1e-6)
    assert -1e-9 <= made.goodput <= made.ettr + 1e-9 <= 1 + 2e-9


def test_a_line_of_the_monitor_is_read_and_a_cut_one_is_not(tmp_path: Path) -> None:
    spent = " ".join(["1.000"] * len(read_run.SPENT))
    line = f"130.5\t@3 10 compute 130.000 1.000000 2\t1 114.000 112.000 0.000 6 {spent}\n"
    (tmp_path / "monitor").mkdir()
    (tmp_path / "monitor" / "slurm-7.n1.example.0.spent").write_text(line + line[:60] + "\n\nx\n", encoding="utf-8")
    (one,) = read_run.processes(tmp_path)
    assert (one.rank, one.node, one.attempt, one.step, one.first, one.usual) == (3, "n1.example", 1, 10, 6, 2.0)
    assert one.spent["end"] == 1.0


def test_the_order_is_that_of_kit_rank() -> None:
    """The program on the nodes and the reader on the login node share no import."""
    spec = importlib.util.spec_from_file_location("kit_rank_of_templates", REPO / "templates/kit_node/kit_rank.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.SPENT == read_run.SPENT


def test_every_account_says_what_it_is() -> None:
    assert set(MEANINGS) == set(Account)
