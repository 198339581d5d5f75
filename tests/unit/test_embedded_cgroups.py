"""`kit cluster up --cgroups`: what it sets, what it wants of the machine, and what `down` removes."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from kit.cli.cluster import app
from kit.errors import ToolError
from kit.slurm.embedded import cgroup_support, conf
from tests.unit.test_embedded_conf import cluster, lines_with

V2 = "0::/user.slice/user-0.slice/session-1.scope\n"
HYBRID = "3:memory:/\n2:cpu,cpuacct:/\n1:name=systemd:/init.scope\n0::/init.scope\n"
MOUNTED = "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nodev 0 0\n"


def test_slurm_follows_processes_by_cgroups() -> None:
    made = cluster(isolated=True).model_copy(update={"cgroups": True})
    text = conf.slurm_conf(made, user="root")
    assert lines_with(text, "ProctrackType=") == ["ProctrackType=proctrack/cgroup"]
    assert lines_with(text, "TaskPlugin=") == ["TaskPlugin=task/cgroup"]
    assert made.shape == cluster(isolated=True).shape + ", cgroups"


@pytest.mark.parametrize(
    ("root", "own", "mounts", "problem"),
    [
        (True, V2, MOUNTED, None),
        (False, V2, MOUNTED, "only root"),
        (True, HYBRID, MOUNTED, "v1 as well: cpu,cpuacct, memory, name=systemd"),
        (True, V2, "proc /proc proc rw 0 0\n", "no cgroup2 is mounted at /sys/fs/cgroup"),
        (True, V2, "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n", "no cgroup2 is mounted at /sys/fs/cgroup"),
        (True, V2, MOUNTED.replace("rw,", "ro,"), "read-only"),
    ],
)
def test_what_the_machine_lacks_is_named(root: bool, own: str, mounts: str, problem: str | None) -> None:
    found = cgroup_support.missing(root=root, own=own, mounts=mounts, systemd=True)
    assert found == problem or (problem and found and problem in found)


def test_the_cgroup_of_systemd_is_needed() -> None:
    found = cgroup_support.missing(root=True, own=V2, mounts=MOUNTED, systemd=False)
    assert found and found.startswith("no /sys/fs/cgroup/system.slice")


def test_it_is_refused_before_anything_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cgroup_support, "missing", lambda **_: "no cgroup2 is mounted")
    monkeypatch.setattr("kit.slurm.embedded.daemons.require_programs", lambda: None)
    done = CliRunner().invoke(app, ["up", "--cgroups", "--dir", str(tmp_path / "lab")])
    assert isinstance(done.exception, ToolError)
    assert done.exception.message == "--cgroups: no cgroup2 is mounted"
    assert "leave out --cgroups" in (done.exception.hint or "")
    assert not (tmp_path / "lab").exists()


def test_what_slurmd_made_is_removed_and_nothing_else(tmp_path: Path) -> None:
    ours = tmp_path / "system.slice" / "lab-1_slurmstepd.scope"
    others = tmp_path / "system.slice" / "slurmstepd.scope"
    for folder in (ours / "job_1" / "step_0" / "user", ours / "system", others / "job_7"):
        folder.mkdir(parents=True)
    cgroup_support.remove(["lab-1", "lab-2"], below=tmp_path)
    assert not ours.exists()
    assert (others / "job_7").is_dir()
