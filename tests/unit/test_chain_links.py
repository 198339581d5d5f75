"""A chain is submitted in the same way on this machine and over ssh: each link once, and none if one is refused."""

from __future__ import annotations

import json

import pytest

from kit.errors import JobRefusedError, SlurmError
from kit.submission.prepare_run import Prepared, prepare_job
from kit.submission.submit import submit
from tests.support import write_job
from tests.unit.host_lab import HereConnection, Lab, lab

__all__ = ["lab"]

JOB = 'name = "digits"\nlauncher = "ddp"\n[resources]\nnodes = 1\ngpus_per_node = 1\n[chain]\ntimes = 3\n'


def prepared(lab: Lab) -> Prepared:
    return prepare_job(write_job(lab.folder, JOB), cluster="there", overrides=[], containers=False)


def require_chain(lab: Lab, run_id: str) -> None:
    """The record has three jobs, of which each waits for those before it."""
    folder = lab.runs / run_id
    facts = json.loads((folder / "manifest.json").read_text())
    assert (facts["job_id"], facts["links"]) == (1, [2, 3])
    assert (folder / "state/links").read_text() == "1\n2\n3\n"
    assert [line.split("|")[2] for line in lab.calls("jobs")] == [
        f"{folder}/{name}" for name in ("batch.sh", "link.sh", "link.sh")
    ]
    later = [line.split() for line in lab.calls("sbatch.calls")][1:]
    assert [next(word for word in line if "dependency=" in word) for line in later] == [
        "--dependency=afternotok:1",
        "--dependency=afternotok:1:2",
    ]
    assert all("--kill-on-invalid-dep=yes" in line for line in later)


def test_each_link_waits_for_those_before_it(lab: Lab) -> None:
    record = submit(prepared(lab))
    assert (record.job_id, record.links) == (1, (2, 3))
    require_chain(lab, record.run_id)


def test_a_refused_link_leaves_no_job(lab: Lab) -> None:
    ready = prepared(lab)
    lab.refuse("link.sh")
    with pytest.raises(JobRefusedError, match="Invalid account"):
        submit(ready)
    assert lab.calls("cancelled") == ["1"]
    assert not (lab.runs / ready.plan.run_id).exists()


@pytest.mark.parametrize("lab", ["ssh"], indirect=True)
def test_a_lost_answer_makes_no_second_link(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HereConnection, "cuts", 1)
    record = submit(prepared(lab))
    assert (record.job_id, record.links) == (1, (2, 3))
    require_chain(lab, record.run_id)


@pytest.mark.parametrize("lab", ["ssh"], indirect=True)
def test_a_link_whose_answer_is_lost_is_found_in_the_queue(lab: Lab) -> None:
    path = lab.tools / "sbatch"
    late = 'case ${!#} in */link.sh) echo "sbatch: error: Socket timed out" >&2; exit 1 ;; esac; echo $n'
    path.write_text(path.read_text().replace("echo $n", late))
    record = submit(prepared(lab))
    assert (record.job_id, record.links) == (1, (2, 3))
    require_chain(lab, record.run_id)


@pytest.mark.parametrize("lab", ["ssh"], indirect=True)
def test_links_that_another_submit_began_are_not_taken_for_submitted(lab: Lab) -> None:
    """Its connection may have broken after the first link: a chain of one job was recorded as the whole chain."""
    ready = prepared(lab)
    path = lab.tools / "sbatch"
    begun = f"case ${{!#}} in */batch.sh) cd {lab.runs}/*/state && mkdir linking ;; esac; echo $n"
    path.write_text(path.read_text().replace("echo $n", begun))
    (lab.tools / "sleep").write_text("#!/bin/sh\n")
    (lab.tools / "sleep").chmod(0o755)
    with pytest.raises(SlurmError, match="under way"):
        submit(ready)
    assert json.loads((lab.runs / ready.plan.run_id / "manifest.json").read_text())["job_id"] is None
    assert lab.calls("cancelled") == []
