"""A sweep that was killed between sbatch and its manifests is found again by its arrays' own scripts (C10)."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.record import manifest
from kit.schema.run_paths import RunPaths
from kit.slurm.client import JobId, QueuedJob
from kit.sweeps import find, lost_arrays
from kit.sweeps.record import NO_JOB, SentArray, SweepPaths, read_sweep
from tests.unit.test_sweep_results import write_sweep

ARGV = ("sbatch", "--parsable", "--dependency=afterok:7", "batch.sh")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three points in two arrays that Slurm may have; the record is as before sbatch's answer, and no manifest names a job."""
    made = write_sweep(tmp_path, [({"a": n}, [], None) for n in range(3)])
    paths = SweepPaths(made)
    arrays = ((0, (2, 0)), (1, (1,)))
    sent = tuple(SentArray(number=n, job_id=NO_JOB, members=members, argv=ARGV) for n, members in arrays)
    read_sweep(made).model_copy(update={"arrays": sent}).write(paths)
    for number, members in arrays:
        (paths.arrays / str(number)).mkdir(parents=True)
        (paths.arrays / str(number) / "batch.sh").touch()
        for task, point in enumerate(members):
            (paths.arrays / str(number) / str(task)).symlink_to(Path("../..") / paths.point(point).relative_to(made))
    for number in range(3):
        path = RunPaths(paths.point(number)).manifest
        manifest.read_manifest(path).model_copy(update={"job_id": None, "array_task": None}).write(path)
    monkeypatch.setattr("kit.hosts.local.LocalHost.is_up", lambda _host: True)
    monkeypatch.setattr("kit.hosts.local.LocalHost.env", lambda _host, inherit=(): {})
    return made


def queue(_: str) -> dict[JobId, QueuedJob]:
    return {
        f"41_{task}": QueuedJob(job_id=f"41_{task}", state="PENDING", reason="", nodes="", elapsed="")
        for task in (0, 1)
    }


def states(folder: Path) -> list[str]:
    found = find.states(folder, read_sweep(folder), queue=queue)
    return [find.state_of(found[index]) for index in range(3)]


def test_points_of_an_array_that_slurm_has(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All were SUBMITTED for ever, and `kit cancel` knew no job."""
    script = SweepPaths(folder).arrays / "0" / "batch.sh"
    monkeypatch.setattr("kit.slurm.client.scripts", lambda **_: {str(script): 41, "/other/arrays/1/batch.sh": 42})
    assert states(folder) == ["PENDING", find.MISSING, "PENDING"]
    assert [one.job_id for one in find.active(folder, queue=queue)] == ["41_1", "41_0"]
    after = read_sweep(folder)
    assert [(array.number, array.members) for array in after.submitted] == [(0, (2, 0))]
    assert [(array.job_id, array.argv) for array in after.arrays] == [(41, ARGV), (NO_JOB, ARGV)]
    assert manifest.read_manifest(RunPaths(SweepPaths(folder).point(0)).manifest).argv == ARGV
    assert lost_arrays.has_lost_arrays(after)


def test_without_a_slurm_nothing_is_changed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = SweepPaths(folder).record.read_bytes()
    monkeypatch.setattr("kit.slurm.client.scripts", lambda **_: {})
    assert states(folder) == [find.MISSING] * 3
    monkeypatch.setattr("kit.hosts.local.LocalHost.is_up", lambda _host: False)
    assert states(folder) == [find.MISSING] * 3
    assert SweepPaths(folder).record.read_bytes() == before


def test_listing_runs_finds_them_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`kit runs` showed SUBMITTED until `kit results` or `kit cancel` was called."""
    script = SweepPaths(folder).arrays / "0" / "batch.sh"
    monkeypatch.setattr("kit.slurm.client.scripts", lambda **_: {str(script): 41})
    points = [SweepPaths(folder).point(number) for number in range(3)]
    assert lost_arrays.noted([*points, folder.parent / "points" / "stray"])
    assert manifest.read_manifest(RunPaths(points[0]).manifest).slurm_id == "41_1"
    assert not lost_arrays.noted(points), "the other array is not in Slurm"
