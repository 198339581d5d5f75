"""A submit says what the stall watch will see."""

from __future__ import annotations

import pytest

from kit.schema.job import Job
from kit.submission.warnings import describe_watch

JOB = {"name": "x", "launcher": "srun", "image": "train-cpu", "script": "p.py"}


@pytest.mark.parametrize("tables", [{}, {"watch": {"stall": False}}, {"monitor": {"enabled": False}}])
def test_a_job_that_asks_for_no_watch(tables: dict[str, object]) -> None:
    assert describe_watch(Job.model_validate({**JOB, **tables})) is None


def test_a_watch_with_its_means() -> None:
    said = describe_watch(Job.model_validate({**JOB, "watch": {"stall": 30}}))
    assert said is not None
    assert said.split("; ") == [
        "watch: steps: as the program reports them, else from its log (kit top, kit why)",
        "processes: sampled on each node",
        "stacks: yes",
        "collectives: NCCL's, written by torch's flight recorder at a time-out",
    ]


def test_a_watch_without_the_monitor_sees_nothing() -> None:
    said = describe_watch(Job.model_validate({**JOB, "watch": {"stall": 30}, "monitor": {"enabled": False}}))
    assert said == "watch: nothing is seen, because monitor.enabled is false"
