"""A submission whose answer is lost, late or noisy is reconciled by its mark. No real sbatch can be told to answer so."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from kit.errors import JobRefusedError, SlurmError, UnconfirmedError
from kit.health.run_record import Record
from kit.health.why import explain
from kit.hosts import open_submissions, status, submission
from kit.record import manifest, run_facts
from kit.schema.run_paths import RunPaths
from kit.slurm import accounting, client, tolerant_reader
from tests.unit.test_status import run_dir

__all__ = ["run_dir"]

# Keeps the comments of the jobs that it takes, a line for each: number|script|comment.
TAKES = """
mark=""; for word in "$@"; do case $word in --comment=*) mark=${word#--comment=} ;; esac; done
take() { n=$(($(wc -l <FOLDER/jobs) + 1)); echo "kit|$n|${!#}|$mark" >>FOLDER/jobs; }
"""
SQUEUE = "cat FOLDER/jobs"
TIMED_OUT = "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "_LOOKS_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(tolerant_reader, "_AGAIN_S", ())


class Site:
    """A folder of stand-ins, and a run's script."""

    def __init__(self, folder: Path, sbatch: str, squeue: str = SQUEUE) -> None:
        self.folder = folder / "site"
        self.folder.mkdir(exist_ok=True)
        (self.folder / "jobs").touch()
        self.tool("sbatch", f"{TAKES}\n{sbatch}")
        self.tool("squeue", squeue)
        self.tool("scancel", 'echo "$@" >>FOLDER/cancelled')
        self.script = folder / "batch.sh"
        if not self.script.exists():
            self.script.write_text("#!/bin/bash\n#SBATCH --job-name=test\n")
        self.note = folder / "submission.json"

    def tool(self, name: str, script: str) -> None:
        (self.folder / name).write_text(f"#!/bin/bash\n{script.replace('FOLDER', str(self.folder))}\n")
        (self.folder / name).chmod(0o755)

    @property
    def env(self) -> dict[str, str]:
        return {"PATH": f"{self.folder}:/usr/bin:/bin"}

    def submit(self, *, earlier: tuple[int, ...] = ()) -> int:
        argv = ("sbatch", "--parsable", str(self.script))
        return submission.submit(argv, env=self.env, note=self.note, earlier=earlier)

    @property
    def jobs(self) -> list[str]:
        return (self.folder / "jobs").read_text().splitlines()


@pytest.mark.parametrize(
    "answer",
    [
        "take; echo 1",
        f"take; {TIMED_OUT}",
        "take; echo 'sbatch: error: Zero Bytes were transmitted or received' >&2; exit 1",
        "take; echo 'sbatch: error: a plugin of the site failed' >&2; exit 1",
        "take; echo 'Submitted.'",
        "take",
        "echo Welcome; take; echo 1; echo '1 December: maintenance'",
        "take; echo 1; echo 1",
        "take; echo 1; echo 2",
    ],
)
def test_the_job_is_found(tmp_path: Path, answer: str) -> None:
    site = Site(tmp_path, answer)
    assert site.submit() == 1
    assert len(site.jobs) == 1
    known = submission.read_intent(site.note)
    assert known is not None
    assert site.jobs[0].endswith(f"|kit:{known.mark}")


def test_an_answer_that_comes_too_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_TIMEOUT_S", 1.0)
    assert Site(tmp_path, "take; exec sleep 60").submit() == 1


def test_a_wrapper_that_submits_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two jobs would share one run folder."""
    site = Site(tmp_path, "take; take; echo 1; echo 2")
    assert site.submit() == 1
    assert (site.folder / "cancelled").read_text() == "2\n"
    assert "job 2 is the same submission a second time" in capsys.readouterr().err


@pytest.mark.parametrize("answer", [TIMED_OUT, "true", "echo 'sbatch: error: Invalid account' >&2; exit 1"])
def test_nothing_was_submitted(tmp_path: Path, answer: str) -> None:
    with pytest.raises(JobRefusedError, match=r"nothing was submitted|Invalid account"):
        Site(tmp_path, answer).submit()


def test_an_open_answer_is_not_called_a_refusal(tmp_path: Path) -> None:
    site = Site(tmp_path, f"take; {TIMED_OUT}", squeue=TIMED_OUT)
    with pytest.raises(UnconfirmedError, match=r"(?s)submit not confirmed.*timed out.*its folder is kept"):
        site.submit()
    assert submission.read_intent(site.note) is not None


def test_a_controller_that_is_not_there_got_nothing(tmp_path: Path) -> None:
    said = "echo 'sbatch: error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
    with pytest.raises(SlurmError, match="controller cannot be reached") as found:
        Site(tmp_path, said, squeue=TIMED_OUT).submit()
    assert not isinstance(found.value, UnconfirmedError | JobRefusedError)


def test_the_jobs_own_comment_stays(tmp_path: Path) -> None:
    site = Site(tmp_path, "take; echo 1")
    site.script.write_text("#!/bin/bash\n#SBATCH --comment=project:42\n")
    site.submit()
    assert "|project:42 kit:" in site.jobs[0]


def test_an_earlier_job_of_the_script_is_another_one(tmp_path: Path) -> None:
    """As of a run that is resumed."""
    site = Site(tmp_path, "take; echo 1")
    site.submit()
    Site(tmp_path, f"take; {TIMED_OUT}")
    assert site.submit(earlier=(1,)) == 2
    Site(tmp_path, TIMED_OUT)
    with pytest.raises(JobRefusedError):
        site.submit(earlier=(1, 2))


@pytest.fixture
def open_run(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Site]:
    """A run without a job in its record; whether Slurm has it is not known. Its submitter is gone."""
    paths = RunPaths(run_dir)
    manifest.read_manifest(paths.manifest).model_copy(update={"job_id": None}).write(paths.manifest)
    site = Site(tmp_path, f"take; {TIMED_OUT}", squeue=TIMED_OUT)
    site.note = paths.submission
    with pytest.raises(UnconfirmedError):
        site.submit()
    monkeypatch.setattr("kit.hosts.local.LocalHost.env", lambda _host, inherit=(): site.env)
    monkeypatch.setattr(submission, "is_under_way", lambda _: False)
    monkeypatch.setattr(accounting, "marked", lambda *_, **__: [])
    return run_dir, site


def seen(run: Path) -> status.Status:
    (one,) = status.read_statuses([run], queue=lambda _: {})
    return one


def test_why_names_what_is_not_known(open_run: tuple[Path, Site]) -> None:
    """No verdict of an end, which nobody has seen."""
    run, _ = open_run
    found = explain(Record(status=seen(run)))
    assert (found.rule, found.verdict) == ("not-known", "wait")
    assert found.line.startswith("its state is not known now: submit not confirmed: squeue could not be asked")


def test_an_open_run_is_settled_once_slurm_answers(
    open_run: tuple[Path, Site], capsys: pytest.CaptureFixture[str]
) -> None:
    run, site = open_run
    one = seen(run)
    assert (one.state, one.job_id) == (status.UNKNOWN, None)
    assert one.reason.startswith("submit not confirmed: squeue could not be asked")
    site.tool("squeue", SQUEUE)
    assert seen(run).job_id == 1
    assert manifest.read_manifest(RunPaths(run).manifest).job_id == 1
    assert not RunPaths(run).submission.exists()
    assert "Slurm had taken it, as job 1" in capsys.readouterr().err


def test_a_run_that_began_tells_its_job_itself(open_run: tuple[Path, Site]) -> None:
    run, _ = open_run
    start = {"event": "start", "job_id": 1, "nodes": "n1", "restart": 0}
    RunPaths(run).events.write_text(f"{json.dumps(start)}\n")
    assert seen(run).job_id == 1
    assert manifest.read_manifest(RunPaths(run).manifest).job_id == 1


def test_a_run_that_slurm_does_not_have(open_run: tuple[Path, Site]) -> None:
    """At first a request may still be under way; after that it is not known to Slurm. Its folder stays."""
    run, site = open_run
    site.tool("squeue", "true")
    assert seen(run).reason == "submit not confirmed: Slurm has no job with its mark yet"
    note = RunPaths(run).submission
    known = json.loads(note.read_text())
    note.write_text(json.dumps({**known, "at": time.time() - 3600}))
    assert seen(run).reason.endswith(f"Slurm knows no job with its mark; 'kit resume {run.name}' submits it")
    assert RunPaths(run).manifest.exists()


def test_a_resume_that_was_cut_off_is_found(open_run: tuple[Path, Site]) -> None:
    """Its record still has the job before."""
    run, site = open_run
    paths = RunPaths(run)
    manifest.read_manifest(paths.manifest).model_copy(update={"job_id": 7}).write(paths.manifest)
    site.tool("squeue", SQUEUE)
    assert seen(run).job_id == 1
    assert manifest.read_manifest(paths.manifest).earlier_job_ids == (7,)


def test_while_the_submitter_is_alive_nothing_is_changed(
    open_run: tuple[Path, Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, site = open_run
    monkeypatch.undo()
    site.tool("squeue", SQUEUE)
    assert open_submissions.settle([(run, run_facts.read_facts(run))]) == {}
    known = json.loads(RunPaths(run).submission.read_text())
    assert f"~{os.getpid()}~" in known["owner"]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"mark": 3}', "\0"])
def test_a_damaged_note_is_no_traceback(open_run: tuple[Path, Site], text: str) -> None:
    run, _ = open_run
    RunPaths(run).submission.write_text(text)
    assert seen(run).state == "SUBMITTED"


def test_accounting_finds_a_forgotten_job(tmp_path: Path) -> None:
    site = Site(tmp_path, "true")
    line = "sbatch --parsable --comment=kit:abc /runs/a/batch.sh"
    site.tool("sacct", f"echo Welcome; echo '12|{line}'; echo '13_[0-3]|{line}'; echo '14|sbatch other.sh'")
    assert accounting.marked("kit:abc", since=time.time(), env=site.env) == [12, 13]
