"""Runs are found and listed whatever one of them looks like; the run index is a cache and never decides."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kit import shell
from kit.cli import runs as cli_runs
from kit.errors import RunError, UsageError
from kit.files import atomic_write
from kit.files.owning_process import Owner
from kit.hosts import status, whole_folder
from kit.record import find_runs, manifest
from kit.record.manifest import Imported, Manifest
from kit.record.unmade_points import POINTS
from kit.schema.run_paths import RunPaths
from kit.submission import folder
from tests.support import make_site, plan_of, write_job

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kit"


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    job = write_job(tmp_path_factory.mktemp("p"), 'name = "d"\nlauncher = "ddp"\n[container]\nruntime = "bare"\n')
    made = plan_of(job, site=make_site(containers=False))
    return manifest.make_manifest(made, job_file=job, user="ada", now=NOON, slurm_version="22.05")


@pytest.fixture
def runs(tmp_path: Path, record: Manifest) -> Path:
    """Four runs, a minute apart, with the jobs 1 to 4."""
    for number in range(1, 5):
        make_run(tmp_path / "runs" / f"d-{number}", record, number)
    return tmp_path / "runs"


def make_run(run_dir: Path, record: Manifest, number: int, **changes: object) -> None:
    (run_dir / "state").mkdir(parents=True)
    facts = {"run_id": run_dir.name, "job_id": number, "submitted_at": NOON + timedelta(minutes=number), **changes}
    record.model_copy(update=facts).write(RunPaths(run_dir).manifest, durable=False)
    RunPaths(run_dir).events.write_text(
        event("start", job_id=number, nodes="n1", restart=0) + event("end", exit_code="0")
    )


def event(name: str, **facts: object) -> str:
    return json.dumps({"event": name, **facts}) + "\n"


def states(runs: Path) -> dict[str, str]:
    found = status.of_facts(find_runs.find_all([runs]), queue=lambda _: {})
    return {one.run_dir.name: one.state for one in found}


@pytest.fixture
def mixed(runs: Path, record: Manifest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs of which d-2 failed, and d-4 has another job's name; Slurm's queue is empty."""
    monkeypatch.setattr("kit.cli.wait_and_follow.queue_for_display", lambda: lambda _: {})
    events = RunPaths(runs / "d-2").events
    events.write_text(events.read_text().replace('"exit_code": "0"', '"exit_code": "1"'))
    other = {"run_id": "d-4", "job_id": 4, "submitted_at": NOON + timedelta(minutes=4), "job_name": "other"}
    record.model_copy(update=other).write(RunPaths(runs / "d-4").manifest, durable=False)
    return runs


@pytest.mark.parametrize(
    ("given", "listed"),
    [
        ({}, "1234"),
        ({"state": ["completed"]}, "134"),
        ({"state": ["COMPLETED", "FAILED"], "name": "d-[12]"}, "12"),
        ({"name": "other"}, "4"),
        ({"since": "2026-11-21T12:02:30+00:00"}, "34"),
        ({"state": ["RUNNING"]}, ""),
    ],
)
def test_only_the_runs_that_match_are_listed(
    given: dict[str, Any], listed: str, mixed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli_runs.runs(**given, runs_dir=mixed, as_json=True)
    said = capsys.readouterr()
    assert [one["run"] for one in json.loads(said.out)] == [f"d-{number}" for number in listed]
    assert ("none of the 4 runs matches; their states: COMPLETED, FAILED" in said.err) == (not listed)


def test_an_age_that_is_none_is_refused(runs: Path) -> None:
    with pytest.raises(UsageError, match="--since '2 days': not a time"):
        cli_runs.runs(since="2 days", runs_dir=runs)


def _cut(run: Path) -> None:
    RunPaths(run).manifest.write_text(RunPaths(run).manifest.read_text()[:40])


def _newer(run: Path) -> None:
    made = json.loads(RunPaths(run).manifest.read_text())
    RunPaths(run).manifest.write_text(json.dumps({**made, "schema_version": 2}))


def _one_key_more(run: Path) -> None:
    made = json.loads(RunPaths(run).manifest.read_text())
    RunPaths(run).manifest.write_text(json.dumps({**made, "colour\x1b[31m": 1}))


def _a_fifo(run: Path) -> None:
    RunPaths(run).manifest.unlink()
    os.mkfifo(RunPaths(run).manifest)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_cut, "manifest.json: damaged"),
        (_newer, "a newer kit wrote it (schema_version 2)"),
        (_one_key_more, "unknown key 'colour\\x1b[31m'"),
        (lambda run: RunPaths(run).manifest.write_bytes(b"\xff\xfe" * 9), "damaged"),
        (lambda run: RunPaths(run).manifest.write_text("[" * 100_000), "damaged"),
        (lambda run: RunPaths(run).manifest.unlink(), "no manifest.json"),
        (_a_fifo, "not a regular file"),
    ],
    ids=["cut", "newer", "key", "binary", "deep", "half deleted", "fifo"],
)
def test_a_run_that_cannot_be_read_is_listed_with_the_reason(
    runs: Path, damage: Callable[[Path], object], reason: str
) -> None:
    """Before, one such run ended `kit runs`, `status`, `logs`, `cancel` and `prune-images` for all."""
    states(runs)
    damage(runs / "d-2")
    for _ in range(2):
        found = {one.run_dir.name: one for one in status.of_facts(find_runs.find_all([runs]), queue=lambda _: {})}
        assert found.pop("d-2").state == "UNREADABLE"
        assert {one.state for one in found.values()} == {"COMPLETED"}
        assert len(found) == 3
    (one,) = status.read_statuses([find_runs.find_one("d-2", [runs])], queue=lambda _: {})
    assert reason in one.reason
    assert "\n" not in one.reason
    assert find_runs.find_one(None, [runs]).name == "d-4"


def test_its_image_stays_in_the_store(runs: Path) -> None:
    """What a half-deleted run would start from is known by its batch script."""
    RunPaths(runs / "d-1").manifest.unlink()
    RunPaths(runs / "d-1").batch.write_text(f"readonly KIT_IMAGES=(/s/sha256/{'ab' * 32}.sqsh)\n")
    facts = dict(find_runs.find_all([runs]))[runs / "d-1"]
    assert facts.image_digest == f"sha256:{'ab' * 32}"


def test_events_that_are_none(runs: Path) -> None:
    odd = ["[]", "7", "null", '{"event": 3}', '{"no": 1}', event("start", job_id="x").strip(), "[" * 100_000, "\0" * 20]
    events = RunPaths(runs / "d-3").events
    events.write_text("\n".join([*odd, event("start", job_id="3", restart="1"), *odd, ""]), encoding="utf-8")
    (one,) = status.read_statuses([runs / "d-3"], queue=lambda _: {})
    assert (one.job_id, one.restarts, one.state) == (3, 1, "LOST")


@pytest.mark.parametrize(
    ("recorded", "restarts"),
    [
        ([("start", 3, 0), ("attempt", 3, 0)], 0),
        ([("start", 3, 0), ("attempt", 3, 0), ("attempt", 3, 0), ("attempt", 3, 0)], 2),
        ([("start", 3, 0), ("attempt", 3, 0), ("start", 3, 1), ("attempt", 3, 1)], 1),
        ([("start", 3, 0), ("attempt", 3, 0), ("start", 3, 2)], 2),
        ([("start", 3, 0), ("attempt", 3, 0), ("attempt", 3, 0), ("start", 4, 0), ("attempt", 4, 0)], 1),
    ],
    ids=["none", "in the allocation", "by Slurm", "no attempt at the last", "a resumed run"],
)
def test_restarts_are_those_of_the_ranks(runs: Path, recorded: list[tuple[str, int, int]], restarts: int) -> None:
    """Those inside the allocation count as well: three starts were "restarts 0"."""
    lines = [event(name, job_id=job, restart=restart) for name, job, restart in recorded]
    RunPaths(runs / "d-3").events.write_text("".join(lines), encoding="utf-8")
    (one,) = status.read_statuses([runs / "d-3"], queue=lambda _: {})
    assert one.restarts == restarts


def test_the_index_follows_what_changes(runs: Path, cache: Path, record: Manifest) -> None:
    assert set(states(runs).values()) == {"COMPLETED"}
    (kept,) = cache.iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    RunPaths(runs / "d-1").events.write_text(event("start", job_id=1) + event("end", exit_code=9))
    make_run(runs / "d-5", record, 5)
    before = states(runs)
    assert before == {"d-1": "FAILED", **{f"d-{n}": "COMPLETED" for n in (2, 3, 4, 5)}}
    for damaged in ("", "{}", '{"form": 1}', "[" * 100_000, kept.read_text()[:-9], '{"form":[1],"runs":{"x":0}}'):
        kept.write_text(damaged)
        assert states(runs) == before
    kept.unlink()
    assert states(runs) == before


def test_an_index_is_used(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = find_runs.find_all([runs])
    monkeypatch.setattr("kit.record.run_facts.read_facts", lambda _: pytest.fail("read again"))
    assert find_runs.find_all([runs]) == before
    assert find_runs.find_one("3", [runs]).name == "d-3"


def test_the_status_of_one_run_reads_its_manifest_once(
    runs: Path, record: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it runs its events grow; only another manifest is read anew."""

    def state() -> tuple[str, int, int | None]:
        (one,) = status.read_statuses([runs / "d-2"], queue=lambda _: {})
        return one.state, one.restarts, one.exit_code

    assert state() == ("COMPLETED", 0, 0)
    assert len(find_runs.find_all([runs])) == 4
    with monkeypatch.context() as patch:
        patch.setattr("kit.record.manifest.read_manifest", lambda _: pytest.fail("read again"))
        with RunPaths(runs / "d-2").events.open("a") as file:
            file.write(event("start", job_id=2, restart=1) + event("end", exit_code=7))
        assert state() == ("FAILED", 1, 7)
        assert find_runs.find_all([runs])[1][1].exit_code == 7
    record.model_copy(update={"run_id": "d-2", "job_id": 22}).write(RunPaths(runs / "d-2").manifest)
    (one,) = status.read_statuses([runs / "d-2"], queue=lambda _: {})
    assert (one.job_id, one.exit_code) == (22, 7)
    RunPaths(runs / "d-2").manifest.write_text("{}")
    assert state()[0] == "UNREADABLE"
    record.write(RunPaths(runs / "d-2").manifest)
    assert state() == ("FAILED", 1, 7)


def test_an_imported_run_has_no_job_here_however_often_it_is_read(runs: Path, record: Manifest) -> None:
    moved = record.model_copy(update={"run_id": "d-3", "job_id": 3, "imported": Imported(at=NOON, index="0")})
    moved.write(RunPaths(runs / "d-3").manifest)
    for code in (4, 5):
        with RunPaths(runs / "d-3").events.open("a") as file:
            file.write(event("start", job_id=3) + event("end", exit_code=code))
        (one,) = status.read_statuses([runs / "d-3"], queue=lambda _: {})
        assert (one.job_id, one.exit_code, one.facts.imported) == (None, code, True)


def test_an_index_that_cannot_be_written_is_done_without(runs: Path, cache: Path) -> None:
    cache.parent.write_text("a file where the cache folder would be")
    assert set(states(runs).values()) == {"COMPLETED"}


def test_a_shell_is_never_the_default(runs: Path, record: Manifest) -> None:
    """`kit status` and `kit cancel` took a shell that had ended for the newest run for ever."""
    make_run(runs / "d-9", record, 9, interactive=True, job_id=None)
    assert find_runs.find_one(None, [runs]).name == "d-4"
    assert find_runs.find_one("d-9", [runs]).name == "d-9"


def test_points_of_sweeps_are_runs_and_sweeps_are_none(runs: Path, record: Manifest) -> None:
    make_run(runs / "s" / POINTS / "s.0", record, 7)
    (runs / "s" / "sweep.json").write_text("{}")
    assert list(states(runs)) == ["d-1", "d-2", "d-3", "d-4", "s.0"]
    assert find_runs.find_one("s.0", [runs]) == runs / "s" / POINTS / "s.0"
    with pytest.raises(RunError, match="4 runs start with it"):
        find_runs.find_one("d-", [runs])


def test_a_submit_elsewhere_keeps_its_partial_folder(tmp_path: Path) -> None:
    """That of another login node, or of another PID namespace on this one, was removed while it was being written."""
    me = Owner.current()
    dead = shell.run(["bash", "-c", "echo $$"]).stdout
    kept = [
        f"another-host~{me.boot}~{me.pid}~{me.started}~{me.namespace}",
        f"{me.host}~{me.boot}~{dead}~1~{me.namespace + 1}",
        str(me),
        "12345-of-an-older-kit",
    ]
    gone = [f"{socket.gethostname()}~{me.boot}~{dead}~1~{me.namespace}"]
    for name in (*kept, *gone):
        (tmp_path / f".partial-{name}~x").mkdir()
    with whole_folder.make_whole(tmp_path / "run"):
        pass
    left = {path.name for path in tmp_path.iterdir()} - {"run"}
    assert left == {f".partial-{name}~x" for name in kept}
    day_ago = datetime.now().timestamp() - 25 * 3600
    for name in left:
        os.utime(tmp_path / name, (day_ago, day_ago))
    with whole_folder.make_whole(tmp_path / "run2"):
        pass
    assert {path.name for path in tmp_path.iterdir()} - {"run", "run2"} == {f".partial-{me}~x"}


def test_modes_are_set_whatever_the_umask(tmp_path: Path, record: Manifest) -> None:
    before = os.umask(0)
    try:
        atomic_write.write(tmp_path / "open", "x")
        os.umask(0o077)
        atomic_write.write(tmp_path / "closed", "x")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("[oc]*e*")} == {0o644}


def test_nothing_of_a_run_can_be_written_by_others(tmp_path: Path, record: Manifest) -> None:
    """C8: under umask 000, lib/, state/ and code/ were anybody's to change."""
    job = write_job(tmp_path / "p", 'name = "d"\nlauncher = "ddp"\n[container]\nruntime = "bare"\n')
    made = plan_of(job, site=make_site(run_dir=tmp_path / "runs" / "d-1", containers=False))
    before = os.umask(0)
    try:
        with whole_folder.make_whole(made.run_dir) as partial:
            folder.fill(partial, made, record)
    finally:
        assert os.umask(before) == 0
    lax = [path for path in (tmp_path / "runs" / "d-1").rglob("*") if path.stat().st_mode & 0o022]
    assert lax == []


@pytest.mark.skipif(os.geteuid() != 0, reason="two users take root")
def test_a_run_that_its_owner_closed_to_others_is_listed_with_the_reason(runs: Path) -> None:
    """Before, it was left out, and `kit runs` listed fewer runs than there are."""
    (runs / "d-2").chmod(0o700)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            # Inside the folder: those above it need not let another user pass.
            os.chdir(runs)
            os.setgid(65534)
            os.setuid(65534)
            found = {path.name: one.problem for path, one in find_runs.find_all([Path()])}
            code = 0 if "ermission denied" in found["d-2"] and not found["d-1"] and len(found) == 4 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
