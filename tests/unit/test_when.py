"""`kit when`: a plan of the queue, what sinfo and squeue print, starts as sentences."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from kit import shell
from kit.cli import choose_cluster
from kit.cli.when import _lines, when
from kit.errors import ConfigError, SlurmError, ToolError
from kit.forecast import answers, time_wording
from kit.forecast.answers import WhenAnswer
from kit.forecast.backfill import BackfillPlan, NodeRequest
from kit.forecast.size_and_place_choices import JobRequest
from kit.forecast.starts import Queue, StartEstimate
from kit.schema.job import Job
from kit.slurm import client, queue_snapshot, run_local_or_ssh, short_forms
from kit.slurm.queue_snapshot import UNLIMITED, Amount, QueueNode, QueueSnapshot, RunningJob, WaitingJob

NOW = 1_000_000.0
WHOLE = Amount(cpus=8, memory=1000.0)


def _queue(
    *, running: tuple[RunningJob, ...] = (), waiting: tuple[WaitingJob, ...] = (), nodes: int = 8
) -> QueueSnapshot:
    named = tuple(
        QueueNode(name=f"n{n}", whole=WHOLE, taken_cpus=0, usable=True, partitions=frozenset({"main"}))
        for n in range(1, nodes + 1)
    )
    return QueueSnapshot(now=NOW, nodes=named, running=running, waiting=waiting)


def _runs(nodes: range, minutes: float, *, used: float = 0.0) -> RunningJob:
    names = tuple(f"n{n}" for n in nodes)
    return RunningJob(nodes=names, each=WHOLE, end=NOW + 60 * minutes, limit=60 * minutes + used, used=used)


def _waits(nodes: int, minutes: float, *, tier: int = 1) -> WaitingJob:
    return WaitingJob(nodes=nodes, each=WHOLE, limit=60 * minutes, partitions=("main",), whole_nodes=True, tier=tier)


def _asks(nodes: int, minutes: float, **more: object) -> NodeRequest:
    return replace(NodeRequest(nodes=nodes, each=WHOLE, limit=60 * minutes), **more)  # type: ignore[arg-type]


def _minutes(start: float | None) -> float | None:
    return None if start is None else (start - NOW) / 60


# Six of eight nodes run for ten minutes more; then a job of all eight, for 20, is due; after it, one of four for 30.
BUSY = _queue(running=(_runs(range(1, 7), 10),), waiting=(_waits(8, 20), _waits(4, 30)))


@pytest.mark.parametrize(
    ("nodes", "minutes", "start"),
    [
        (2, 10, 0),  # the gap before the job of eight
        (2, 11, 30),  # too long for it: beside the job of four
        (3, 5, 30),
        (5, 5, 60),
        (8, 5, 60),
        (9, 5, None),
    ],
)
def test_a_job_goes_into_the_first_gap_that_holds_it(nodes: int, minutes: float, start: float | None) -> None:
    assert _minutes(BackfillPlan(BUSY).earliest(_asks(nodes, minutes))) == start


def test_the_gap_says_how_short_a_job_would_have_to_be() -> None:
    plan = BackfillPlan(BUSY)
    assert plan.gap(_asks(2, 60)) == 600
    assert plan.gap(_asks(3, 60)) == 0
    assert BackfillPlan(_queue()).gap(_asks(8, 60)) == UNLIMITED


def test_pieces_take_the_nodes_from_each_other_and_from_nobody_else() -> None:
    queue = Queue(BUSY)
    both = queue.start(_asks(1, 10), pieces=2)
    assert (_minutes(both.by_limits), _minutes(both.last)) == (0, 0)
    third = queue.start(_asks(1, 10), pieces=3)
    assert (_minutes(third.by_limits), _minutes(third.last)) == (0, 30)
    assert _minutes(queue.start(_asks(2, 10)).by_limits) == 0


def test_a_job_of_a_higher_tier_goes_before_those_that_wait_in_lower_ones() -> None:
    assert _minutes(BackfillPlan(BUSY, tier=2).earliest(_asks(8, 5))) == 10


def test_nodes_that_the_job_may_not_have_are_not_counted() -> None:
    free = _queue(nodes=4)
    out = replace(free, nodes=(replace(free.nodes[0], usable=False), *free.nodes[1:]))
    assert BackfillPlan(out).earliest(_asks(4, 5)) is None
    assert BackfillPlan(free).earliest(_asks(4, 5, never=frozenset({"n1"}))) is None
    assert BackfillPlan(free).earliest(_asks(1, 5, only=frozenset({"n9"}))) is None
    assert BackfillPlan(free).earliest(_asks(1, 5, partitions=("other",))) is None
    assert BackfillPlan(free).earliest(_asks(1, 5, features=frozenset({"a100"}))) is None
    assert BackfillPlan(free).earliest(_asks(4, 5, partitions=("main", "other"))) == NOW


def test_a_node_is_shared_as_far_as_it_reaches() -> None:
    half = replace(_runs(range(1, 3), 10), each=Amount(cpus=5, memory=100.0))
    plan = BackfillPlan(_queue(running=(half,), nodes=2))
    assert _minutes(plan.earliest(_asks(2, 5, each=Amount(cpus=3)))) == 0
    assert _minutes(plan.earliest(_asks(2, 5, each=Amount(cpus=4)))) == 10
    assert _minutes(plan.earliest(_asks(2, 5, each=Amount(cpus=1), whole_nodes=True))) == 10
    assert plan.earliest(_asks(1, 5, each=Amount(gpus=1))) is None


def test_jobs_that_use_a_part_of_their_limits_end_sooner() -> None:
    seen = replace(
        _queue(running=(_runs(range(1, 9), 10, used=600),), waiting=(_waits(8, 20),)), shares=(0.25,) * 5 + (0.75,) * 5
    )
    start = Queue(seen).start(_asks(8, 5))
    assert _minutes(start.by_limits) == 30
    # Of those that ended, half would run 15 of the 20 minutes, and this one has run for 10; then half of 20.
    assert _minutes(start.likely) == pytest.approx(5 + 10, abs=0.1)
    assert start.likely_end == pytest.approx((start.likely or 0) + 150)


def test_what_fits_into_no_gap_by_limits_does_not_start_there_though_jobs_end_early() -> None:
    """Slurm looks at limits: a job of 11 minutes is kept out of a gap of 10, however short it may turn out."""
    seen = replace(BUSY, shares=(0.5,) * 10)
    queue = Queue(seen)
    assert _minutes(queue.start(_asks(2, 10)).likely) == 0
    assert _minutes(queue.start(_asks(2, 11)).likely) == pytest.approx(5 + 10, abs=0.1)


def test_what_starts_first_comes_first_unless_it_then_runs_for_much_longer() -> None:
    queue = Queue(BUSY)
    short, longer, later = (queue.start(_asks(*size)) for size in ((2, 5), (2, 10), (3, 5)))
    assert [_minutes(one.by_limits) for one in (short, longer, later)] == [0, 0, 30]
    assert sorted((later, longer, short), key=lambda one: one.rank) == [short, longer, later]
    much_longer = replace(longer, ends_by=NOW + 60 * 200)
    assert later.rank < much_longer.rank
    assert queue.start(_asks(9, 5)).rank > much_longer.rank


def test_few_ended_jobs_say_nothing() -> None:
    assert Queue(replace(BUSY, shares=(0.1,) * 9)).start(_asks(1, 5)).likely is None


SINFO = """\
n1|main*|mixed|4/4/0/8|1000|gpu:h100:4(S:0-1)|1|a,b|infinite|1-infinite|
n1|urgent|mixed|4/4/0/8|1000|gpu:h100:4(S:0-1)|10|a,b|30:00|1-2|
n2|main*|idle|0/8/0/8|1000|(null)|1|(null)|infinite|1-infinite|
n3|main*|down*|0/0/8/8|1000|(null)|1|(null)|infinite|1-infinite|
n4|main*|idle~|0/8/0/8|1000|(null)|1|(null)|infinite|1-infinite|
n5|main*|draining@|0/8/0/8|1000|(null)|1|(null)|infinite|1-infinite|
"""
SQUEUE = """\
7|R|None|100|1|10:00|4:00|1000360|cpu=4,mem=500M,node=1,billing=4|gres:gpu:2|n1|main|OK|
9_2|PD|Priority|90|2|1-00:00:00|0:00|N/A|cpu=16,mem=1000M,node=2,billing=16,gres/gpu=4|N/A||main|NO|
8|PD|Resources|100|1|UNLIMITED|0:00|N/A|cpu=1,mem=1M,node=1|N/A||main|OK|
11|PD|Priority|1|1|5:00|0:00|N/A|cpu=1,mem=1M,node=1|N/A||main,urgent|OK|
10|PD|Dependency|100|1|5:00|0:00|N/A|cpu=1,mem=1M,node=1|N/A||main|OK|
5|CD|None|100|1|10:00|2:30|1000000|cpu=1,mem=1M,node=1|N/A|n2|main|OK|
"""


def test_what_sinfo_and_squeue_print_is_read() -> None:
    seen = queue_snapshot.parse(SINFO, SQUEUE, now=NOW)
    assert [(node.name, node.usable) for node in seen.nodes] == [
        ("n1", True), ("n2", True), ("n3", False), ("n4", True), ("n5", False),
    ]  # fmt: skip
    assert seen.nodes[0].whole == Amount(cpus=8, memory=1000.0, gpus=4)
    assert seen.nodes[0].partitions == {"main", "urgent"}
    assert seen.nodes[0].features == {"a", "b"}
    assert seen.default == "main"
    assert seen.other_partitions == ("urgent",)
    asked = [
        ("urgent", 2, 1800.0),
        ("urgent", 3, 60.0),
        ("urgent", 1, 1801.0),
        ("urgent", 1, UNLIMITED),
        ("main", 9, 1e9),
    ]
    assert [seen.allows([name], nodes=nodes, time=time) for name, nodes, time in asked] == [
        True,
        False,
        False,
        True,
        True,
    ]
    assert seen.allows([], nodes=9, time=1e9)
    (running,) = seen.running
    assert (running.end, running.limit, running.used) == (1_000_360.0, 600.0, 240.0)
    assert running.each == Amount(cpus=4, memory=500.0, gpus=2)
    # The partition of a higher tier first, then by priority; what waits for another job is passed over.
    assert [(job.tier, job.limit) for job in seen.waiting] == [(10, 300.0), (1, UNLIMITED), (1, 86400.0)]
    assert seen.waiting[2].each == Amount(cpus=8, memory=500.0, gpus=2)
    assert seen.waiting[2].whole_nodes
    assert seen.shares == (0.25,)
    assert not seen.hidden
    assert queue_snapshot.parse(SINFO, "", now=NOW).hidden


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3,05],b", ["n1", "n2", "n3", "n05", "b"]),
        ("r[1-2]n[1-2]x", ["r1n1x", "r1n2x", "r2n1x", "r2n2x"]),
    ],
)
def test_hosts(text: str, names: list[str]) -> None:
    assert list(short_forms.expand_nodes(text)) == names


def test_slurms_times() -> None:
    assert [queue_snapshot.seconds(text) for text in ("5:00", "1:00:00", "1-02:00:00", "UNLIMITED", "INVALID")] == [
        300.0, 3600.0, 93600.0, UNLIMITED, 0.0,
    ]  # fmt: skip


def test_slurms_own_estimate_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    told = "sbatch: Job 20 to start at 1795394654 using 16 processors on nodes n[1-2] in partition main"
    done = shell.Completed(argv=(), returncode=0, stdout="", stderr=told)
    monkeypatch.setattr(shell, "run", lambda *_, **__: done)
    found = client.test_only("", env={})
    assert found == client.ExpectedStart(time=1795394654.0, nodes="n[1-2]", partition="main")


def test_moments_and_spans() -> None:
    noon = datetime(2026, 11, 22, 12, 0).timestamp()
    assert time_wording.moment(noon + 30, noon) == "now"
    assert time_wording.moment(noon + 7800, noon) == "at 14:10"
    assert time_wording.moment(noon + 15 * 3600, noon) == "tomorrow at 03:00"
    assert time_wording.moment(noon + 50 * 3600, noon) == time.strftime(
        "on %a 24 Nov at 14:00", time.localtime(noon + 50 * 3600)
    )
    assert [time_wording.span(s) for s in (45.0, 3000.0, 7200.0, 5400.0, 273600.0, UNLIMITED)] == [
        "45 s", "50 min", "2 h", "1 h 30 min", "3 d 4 h", "no limit",
    ]  # fmt: skip


def test_a_choice_says_something() -> None:
    from kit import config

    with pytest.raises(ConfigError, match="is the same as the job itself"):
        config.validate({"name": "a", "launcher": "ddp", "when": [{}]}, Job, file="job.toml")
    job = config.validate({"name": "a", "launcher": "ddp", "when": [{"nodes": 4}, {"pieces": 8}]}, Job, file="job.toml")
    assert [one.nodes for one in job.when] == [4, None]


def test_a_command_says_all_that_the_user_said() -> None:
    request = JobRequest(
        job_file=Path("my job.toml"), cluster="pod", overrides=("args=['a b']", "resources.nodes=4"), containers=False
    )
    words = ["--cluster", "pod", "--set", "args=['a b']", "--set", "resources.nodes=4", "--no-container"]
    assert shlex.split(request.command("submit")) == ["kit", "submit", "my job.toml", *words]
    assert JobRequest(job_file=Path("job.toml"), cluster=None).command("sweep") == "kit sweep job.toml"


def _answer(start: float | None, *, pieces: int = 1, command: str = "") -> WhenAnswer:
    estimate = StartEstimate(by_limits=start, last=start, ends_by=None) if start else None
    return WhenAnswer(
        cluster="pod", job="gpt", nodes=2, limit=3600.0, pieces=pieces, qos=None, partition=None, now=NOW, start=estimate,
        refused="" if start else "too large", command=command,
    )  # fmt: skip


def test_when_no_cluster_answers_that_is_an_error_and_each_has_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        (tmp_path / "clusters").mkdir(exist_ok=True)
        (tmp_path / "clusters" / f"{name}.toml").write_text("[node]\ncpus = 8\n")
    (tmp_path / "job.toml").write_text(
        'name = "a"\nlauncher = "srun"\ncommand = ["true"]\n[resources]\nranks_per_node = 1\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_local_or_ssh, "run", _no_slurm)
    with pytest.raises(SlurmError, match="no cluster could be asked"):
        when(cluster=["one", "two"], containers=False)
    reason = "Slurm's queue could not be read: sinfo: fatal: Unable to process configuration file"
    assert capsys.readouterr().err.splitlines() == [f"kit: {name}: {reason}" for name in ("one", "two")]


def test_a_job_goes_to_a_cluster_as_it_was_asked_for_and_in_no_other_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the user's own --set is in the command."""
    own = replace(_answer(NOW + 60, command="kit submit job.toml --set name=b"), as_written=True)
    monkeypatch.setattr(
        answers, "ask", lambda *_, **__: [_answer(NOW, command="kit submit --set resources.nodes=1"), own]
    )
    assert choose_cluster._asked(Path("job.toml"), ["pod"], overrides=["name=b"], containers=False) == [own]


def _no_slurm(argv: Sequence[str], **_: object) -> shell.Completed:
    raise ToolError("sinfo: exit code 1\n  sinfo: fatal: Unable to process configuration file")


def test_the_command_is_that_of_the_first_choice_or_names_its_own() -> None:
    first, second = _answer(NOW, command="kit submit a"), _answer(NOW + 3600, command="kit submit b")
    assert _lines([first, second])[-1] == "kit submit a"
    assert _lines([_answer(NOW, pieces=8), second])[-1] == "kit submit b  # 2 nodes for 1 h"
    assert "kit submit" not in " ".join(_lines([_answer(NOW, pieces=8), _answer(None)]))
