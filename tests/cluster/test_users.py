"""Two ordinary users on one cluster that root started, with one project folder."""

from __future__ import annotations

import json
import os
import pwd
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import shell
from kit.shell import Completed
from tests.cluster.conftest import lab_on, short_folder
from tests.cluster.lab import TIMEOUT_S, Lab
from tests.cluster.test_cluster import _as_user

pytestmark = [pytest.mark.cluster, pytest.mark.root]

GROUP = "kit-lab"
NAMES = ("kit-ada", "kit-bob")


@pytest.fixture(scope="module")
def users() -> Iterator[list[pwd.struct_passwd]]:
    """Two users of one group; removed at the end."""
    if os.geteuid() != 0 or shell.which("useradd") is None:
        pytest.skip("needs root and useradd, to become an ordinary user")
    try:
        shell.run(["groupadd", "--force", GROUP])
        for name in NAMES:
            if name not in {entry.pw_name for entry in pwd.getpwall()}:
                shell.run(["useradd", "--create-home", "--gid", GROUP, name])
        yield [pwd.getpwnam(name) for name in NAMES]
    finally:
        for name in NAMES:
            shell.run(["userdel", "--remove", name], check=False)
        shell.run(["groupdel", GROUP], check=False)


@pytest.fixture(scope="module")
def shared_lab(users: list[pwd.struct_passwd]) -> Iterator[Lab]:
    """A project folder that both may write to, on a cluster of root's."""
    with short_folder() as parent:
        project = parent / "project"
        project.mkdir()
        with lab_on("users", 2, project / "store", project) as lab:
            lab.write(
                'shape = "srun"\nscript = "program.py"\n[resources]\nnodes = 2\ngpus_per_node = 1\n',
                "import getpass, os\nprint(getpass.getuser(), os.environ['RANK'])\n",
            )
            (project / "runs").mkdir()
            for path in (project, *project.rglob("*")):
                if not path.is_symlink():
                    shutil.chown(path, group=GROUP)
                    path.chmod(0o2775 if path.is_dir() else 0o664)
            yield lab


def kit(lab: Lab, user: pwd.struct_passwd, *argv: str, check: bool = True) -> Completed:
    """`kit` as that user, in the shared project."""
    python, env = _as_user(user)
    return shell.run(
        [*python, "-m", "kit", *argv],
        cwd=lab.project,
        env={**env, **lab.env, "USER": user.pw_name, "LOGNAME": user.pw_name},
        timeout=TIMEOUT_S,
        check=check,
    )


def test_two_users_share_a_cluster_and_a_project(shared_lab: Lab, users: list[pwd.struct_passwd]) -> None:
    lab, cluster = shared_lab, shared_lab.cluster.name
    runs = []
    for user in users:
        done = kit(lab, user, "submit", "--cluster", cluster, "--no-container", "--wait", check=False)
        assert done.returncode == 0, done.stderr
        run = Path(done.stdout.splitlines()[0])
        assert run.stat().st_uid == user.pw_uid
        assert user.pw_name in (run / "logs" / "rank-0.log").read_text()
        runs.append(run)
    # Each sees both runs as what they are, though Slurm is asked for his own jobs alone.
    for user in users:
        rows = json.loads(kit(lab, user, "runs", "--json").stdout)
        assert {(row["run"], row["state"]) for row in rows} == {(run.name, "COMPLETED") for run in runs}


@pytest.mark.slow
def test_a_user_cannot_cancel_anothers_run(shared_lab: Lab, users: list[pwd.struct_passwd]) -> None:
    lab, (ada, bob) = shared_lab, users
    (lab.project / "program.py").write_text("import time; time.sleep(600)\n")
    run = Path(kit(lab, ada, "submit", "--cluster", lab.cluster.name, "--no-container").stdout.splitlines()[0])
    lab.wait(lambda: lab.job(run)["JobState"] == "RUNNING", run)
    kit(lab, bob, "cancel", run.name, check=False)
    assert lab.job(run)["JobState"] == "RUNNING"
    kit(lab, ada, "cancel", run.name)
    kit(lab, ada, "cancel", run.name, check=False)
    assert lab.wait_end(run)["JobState"] in {"CANCELLED", "FAILED"}
