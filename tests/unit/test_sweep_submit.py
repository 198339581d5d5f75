"""A sweep is submitted in the same way on this machine and over ssh: its folders, its arrays, and what a refusal leaves."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kit import shell
from kit.errors import JobRefusedError, UsageError
from kit.sweeps import submit as sending
from kit.sweeps.prepare import PreparedSweep, prepare_sweep
from kit.sweeps.record import SweepPaths, read_sweep
from tests.support import write_job
from tests.unit.host_lab import HereConnection, Lab, lab

__all__ = ["lab"]

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
JOB = 'name = "digits"\nlauncher = "ddp"\n[resources]\nnodes = 1\ngpus_per_node = 1\n'
# Two arrays. In each, four points have a template, and a value with a blank has its folder at once.
SWEEP = "[sweep.grid]\nargs.--lr = [1e-5, 0.25, -3, 'plain', 'a b']\nresources.nodes = [1, 2]\n"


def prepared(lab: Lab, sweep: str = SWEEP, **options: object) -> PreparedSweep:
    path = write_job(lab.folder, JOB + sweep)
    return prepare_sweep(path, cluster="there", containers=False, now=NOON, **options)  # type: ignore[arg-type]


def manifest_of(point: Path) -> dict[str, object]:
    return json.loads((point / "manifest.json").read_text())  # type: ignore[no-any-return]


def test_each_point_has_its_place_and_its_job(lab: Lab) -> None:
    ready = prepared(lab)
    record = sending.submit(ready, now=NOON)
    paths = SweepPaths(lab.runs / ready.folder.name)
    assert read_sweep(paths.root) == record
    assert [(one.number, one.job_id, len(one.members)) for one in record.arrays] == [(0, 1, 5), (1, 2, 5)]
    assert [(paths.arrays / name / "job").read_text() for name in ("0", "1")] == ["1\n", "2\n"]
    assert len([*paths.points.iterdir()]) == 2, "the others wait for their start"
    for array in record.arrays:
        made = array.members[-1]
        facts = manifest_of(paths.point(made))
        assert (facts["job_id"], facts["array_task"], facts["argv"]) == (array.job_id, 4, [*array.argv])
        folder = paths.arrays / str(array.number)
        shell.run(["bash", str(folder / "make_point.sh"), str(folder), "1", str(array.job_id)])
        facts = manifest_of(paths.point(array.members[1]))
        assert (facts["job_id"], facts["array_task"], facts["argv"]) == (array.job_id, 1, [*array.argv])


def test_points_are_submitted_again_in_the_same_folder(lab: Lab) -> None:
    first = sending.submit(prepared(lab, "[sweep.grid]\nenv.A = ['1', '2']\n"), now=NOON)
    ready = prepared(lab, "[sweep.grid]\nenv.A = ['1', '2', '3']\n", into=first)
    record = sending.resubmit(ready, first, [1, 2], now=NOON)
    paths = SweepPaths(lab.runs / first.sweep_id)
    assert read_sweep(paths.root) == record
    assert [(one.number, one.job_id, one.members) for one in record.arrays] == [(0, 1, (0, 1)), (1, 2, (1, 2))]
    jobs = [(manifest_of(paths.point(n))["job_id"], manifest_of(paths.point(n))["array_task"]) for n in range(3)]
    assert jobs == [(1, 0), (2, 0), (2, 1)]


def test_a_refused_array_leaves_nothing(lab: Lab) -> None:
    lab.refuse("arrays/1/batch.sh")
    ready = prepared(lab)
    with pytest.raises(JobRefusedError, match="Invalid account"):
        sending.submit(ready, now=NOON)
    assert lab.calls("cancelled") == ["1"]
    assert not (lab.runs / ready.folder.name).exists()


@pytest.mark.parametrize("lab", ["ssh"], indirect=True)
def test_a_lost_answer_makes_no_second_array(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HereConnection, "cuts", 2)
    ready = prepared(lab)
    record = sending.submit(ready, now=NOON)
    assert [one.job_id for one in record.arrays] == [1, 2]
    assert len(lab.calls("jobs")) == 2
    assert read_sweep(lab.runs / ready.folder.name) == record


@pytest.mark.parametrize("lab", ["ssh"], indirect=True)
def test_a_search_needs_the_kit_on_the_nodes(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kit.sweeps.search.search_requirements.argv", lambda: ("python3",))
    search = (
        '[sweep]\nmetric = "loss"\n[sweep.search]\ncount = 4\n[sweep.search.keys]\nenv.A = { choice = ["1", "2"] }\n'
    )
    with pytest.raises(UsageError, match="the nodes of cluster there do not have this machine's Python"):
        sending.submit(prepared(lab, search), now=NOON)
    assert not lab.calls("jobs")
