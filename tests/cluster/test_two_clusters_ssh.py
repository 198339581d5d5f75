"""One training on two clusters that a laptop reaches over ssh: submitted, seen and cancelled as one; a relay on the login node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.record import metrics
from kit.slurm.embedded import EmbeddedCluster
from tests.cluster.conftest import short_folder
from tests.cluster.lab import came
from tests.cluster.ssh_lab import Far, far_lab, store_over_there, write_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.root]

RELAY = '[relay]\nhost = "127.0.0.1"\nports = "29750-29799"\nbind = "127.0.0.1"\n'
JOB = """
name = "two"
launcher = "diloco"
image = "frameworks-cpu"
[resources]
nodes = 2
ranks_per_node = 1
time = "00:05:00"
[diloco]
across = true
[slurm]
extra = ["--begin=now+1hour"]
"""


@pytest.fixture(scope="module")
def far(cluster: EmbeddedCluster) -> Iterator[Far]:
    """Two cluster files that lead to one login node; each has a folder of runs of its own."""
    with short_folder() as folder, far_lab(cluster, folder) as lab:
        write_cluster(lab, "one", more=RELAY, paths='runs = "{home}/kit/one"')
        write_cluster(lab, "other", paths='runs = "{home}/kit/other"')
        (lab.project / "job.toml").write_text(JOB)
        yield lab


def submit(far: Far) -> tuple[str, str]:
    done = far.kit("submit", "--cluster", "one,other", "--no-container")
    first, second = (Path(line).name for line in done.stdout.split())
    return first, second


def there(far: Far, run: str) -> Path:
    """A run's folder over there."""
    return far.home / "kit" / run.rpartition("-")[2] / run


def relay(far: Far, run: str) -> int | None:
    """The process of a run's relay."""
    try:
        told = json.loads((there(far, run) / "state" / "relay.json").read_text())
        words = Path(f"/proc/{told['pid']}/cmdline").read_bytes()
    except OSError:
        return None
    return int(told["pid"]) if b"relay.py" in words else None


def status(far: Far, run: str) -> Any:
    return json.loads(far.kit("status", run, "--json").stdout)


def test_it_is_submitted_seen_and_cancelled_as_one(far: Far) -> None:
    first, second = submit(far)
    pid = relay(far, first)
    assert pid is not None
    assert Path(f"/proc/{pid}").stat().st_uid == far.home.stat().st_uid != 0
    secrets = [(there(far, run) / ".secrets").read_text() for run in (first, second)]
    token = secrets[0].partition("KIT_RELAY_TOKEN=")[2].split()[0]
    assert len(token) == 64
    assert token in secrets[1]
    assert token not in (far.folder / "ssh.calls").read_text()
    assert token.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    far.requests()
    seen = status(far, second)["partner"]
    # Of each cluster its records, then its files.
    assert far.requests() == 4
    assert (seen["run"], seen["cluster"], seen["state"], seen["relay"]) == (first, "one", "PENDING", "up")
    seen = status(far, first)["partner"]
    assert far.requests() == 3
    assert (seen["run"], seen["cluster"], seen["state"], seen["relay"]) == (second, "other", "PENDING", "up")
    rows = [line.split()[:2] for line in far.kit("runs").stdout.splitlines()]
    at = [row[0] for row in rows].index(first)
    assert rows[at + 1] == ["└", second]
    said = far.kit("cancel", second).stderr
    assert said.count("cancelled") == 2, said
    assert {run: far.listed()[run]["state"] for run in (first, second)} == dict.fromkeys((first, second), "CANCELLED")
    assert not [run for run in (first, second) if (there(far, run) / ".secrets").exists()]
    assert came(lambda: relay(far, first) is None)


def test_a_dead_relay_is_named_and_started_again(far: Far) -> None:
    far.requests()
    first, _ = submit(far)
    # Of an unchanged workspace: four for each cluster as for any run, and on the first one a port and the relay.
    assert far.requests() == 10
    pid = relay(far, first)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert came(lambda: relay(far, first) is None)
    assert status(far, first)["partner"]["relay"] == "gone"
    assert f", relay gone; 'kit resume {first}' starts it again" in far.kit("status", first).stdout
    assert f"the relay of {first} runs again" in far.kit("resume", first).stderr
    assert relay(far, first) not in {None, pid}
    far.kit("cancel", first)


def cluster_with_python(far: Far, name: str, first: str) -> None:
    """A cluster file whose login node has a Python that does something before it runs the relay."""
    folder = far.home / name
    folder.mkdir()
    (folder / "python3").write_text(
        f'#!/bin/sh\ncase $1 in\n-c | --version) ;;\n*) {first} ;;\nesac\nPATH=${{PATH#{folder}:}}\nexec python3 "$@"\n'
    )
    (folder / "python3").chmod(0o755)
    write_cluster(far, name, more=f'path = "{folder}"\n{RELAY}', paths=f'runs = "{{home}}/kit/{name}"')


def test_a_relay_that_does_not_start_takes_the_first_half_back(far: Far) -> None:
    cluster_with_python(far, "broken", "echo no memory; exit 1")
    before = set(far.jobs())
    done = far.kit("submit", "--cluster", "broken,other", "--no-container", check=False)
    assert done.returncode != 0
    assert "cluster broken: the relay does not start on login.pod: no memory" in done.stderr
    (first,) = [run for job, run in far.jobs().items() if job not in before]
    assert f"{first}: cancelled, as the other half was not submitted" in done.stderr
    assert far.listed()[first]["state"] == "CANCELLED"
    assert not (there(far, first) / ".secrets").exists()
    (far.project / "clusters" / "broken.toml").unlink()


def test_a_kit_that_is_killed_between_the_halves_leaves_neither(far: Far) -> None:
    """The relay starts between the two submits; here its Python waits first."""
    began = far.home / "began"
    cluster_with_python(far, "slow", f": >{began}; sleep 8")
    before = set(far.jobs())
    argv = [sys.executable, "-m", "kit", "submit", "--cluster", "slow,other", "--no-container"]
    with subprocess.Popen(argv, cwd=far.project, env=far.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as made:
        assert came(began.exists)
        made.kill()
        made.communicate()
    (first,) = [run for job, run in far.jobs().items() if job not in before]
    assert came(lambda: far.listed()[first]["state"] == "CANCELLED")
    # The relay, which the killed kit had begun to start, finds no token any more; or it began before, and ends with its run.
    log = there(far, first) / "logs" / "relay.log"
    assert came(lambda: "has the run ended?" in log.read_text() or "relay ends with its run" in log.read_text())
    assert relay(far, first) is None
    assert {run for job, run in far.jobs().items() if job not in before} == {first}
    assert status(far, first)["partner"]["state"] == "not found"
    (far.project / "clusters" / "slow.toml").unlink()


@pytest.mark.slow
def test_a_kit_that_is_killed_after_a_half_of_this_machine_leaves_neither(far: Far) -> None:
    """The first cluster is this machine's own. The line to the second one is held up once the first half is in the queue."""
    name, own, held = far.cluster.name, far.folder / "own", far.folder / "held"
    (far.project / "clusters" / f"{name}.toml").write_text(
        f'embedded = true\n{RELAY}[node]\ncpus = 8\n[paths]\nruns = "{own}"\n'
    )
    link = far.folder / "data" / "kit" / "clusters" / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(far.cluster.folder)
    ssh = far.folder / "bin" / "ssh"
    was = ssh.read_text()
    waits = (
        f"while [ -e {held} ] && grep -qs '\"job_id\": [0-9]' {own}/*/manifest.json; do : >{held}; sleep 0.1; done\n"
    )
    ssh.write_text(was.replace("#!/bin/sh\n", f"#!/bin/sh\n{waits}"))
    held.write_text("nobody waits yet")
    argv = [sys.executable, "-m", "kit", "submit", "--cluster", f"{name},other", "--no-container"]
    try:
        before = set(far.jobs())
        with subprocess.Popen(
            argv, cwd=far.project, env=far.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as made:
            assert came(lambda: held.read_text() == "" or made.poll() is not None)
            made.kill()
            _, err = made.communicate()
        held.unlink()
        (folder,) = (path.parent for path in own.glob("*/manifest.json"))
        assert (folder / ".secrets").exists(), err
        assert came(lambda: far.listed()[folder.name]["state"] == "CANCELLED")
        assert not (folder / ".secrets").exists()
        # The request that was held up had not begun.
        assert set(far.jobs()) == before
        assert came(lambda: "relay ends with its run" in (folder / "logs" / "relay.log").read_text())
    finally:
        held.unlink(missing_ok=True)
        ssh.write_text(was)
        (far.project / "clusters" / f"{name}.toml").unlink()
        link.unlink()


def test_a_login_node_without_a_python_for_the_relay_is_named(far: Far) -> None:
    folder = far.home / "old"
    folder.mkdir()
    for name in ("python3", *(f"python3.{minor}" for minor in range(8, 15))):
        (folder / name).write_text("#!/bin/sh\necho Python 3.6.8\nexit 1\n")
        (folder / name).chmod(0o755)
    write_cluster(far, "old", more=f'path = "{folder}"\n{RELAY}', paths='runs = "{home}/kit/old"')
    try:
        done = far.kit("submit", "--cluster", "old,other", "--no-container", check=False)
    finally:
        (far.project / "clusters" / "old.toml").unlink()
    assert done.returncode != 0
    assert "cluster old: the relay needs Python 3.8 or newer on login.pod, which has Python 3.6.8" in done.stderr
    assert 'path = "/opt/python/bin" under [ssh] of clusters/old.toml' in done.stderr


def token(far: Far, run: str) -> str:
    return (there(far, run) / ".secrets").read_text().partition("KIT_RELAY_TOKEN=")[2].split()[0]


def end_by_slurm(far: Far, run: str) -> None:
    """End its job as a node's loss would: the kit has no part in it."""
    far.slurm("scancel", str(far.listed()[run]["job_id"]))
    far.wait(run, "CANCELLED", "FAILED")


@pytest.mark.slow
def test_each_half_is_resumed_with_the_token_and_the_port_that_the_other_knows(far: Far) -> None:
    first, second = submit(far)
    pid, known = relay(far, first), token(far, first)
    end_by_slurm(far, second)
    assert "continues" in far.kit("resume", second).stderr
    assert (far.listed()[second]["state"], far.listed()[first]["state"]) == ("PENDING", "PENDING")
    assert (token(far, second), relay(far, first)) == (known, pid)
    port = json.loads((there(far, first) / "state" / "relay.json").read_text())["port"]
    end_by_slurm(far, first)
    # It asks Slurm once a minute, and twice.
    assert came(lambda: relay(far, first) is None)
    assert "continues" in far.kit("resume", first).stderr
    assert relay(far, first) not in {None, pid}
    assert json.loads((there(far, first) / "state" / "relay.json").read_text())["port"] == port
    assert token(far, first) == known
    assert status(far, second)["partner"]["relay"] == "up"
    far.kit("cancel", first)
    assert {far.listed()[run]["state"] for run in (first, second)} == {"CANCELLED"}
    assert came(lambda: relay(far, first) is None)


def training_clusters(far: Far, store: Path) -> None:
    """Clusters alpha and beta, whose only way to each other is the relay on the login node."""
    for name in ("alpha", "beta"):
        (far.project / "clusters" / f"{name}.toml").write_text(
            f'[ssh]\nhost = "login.pod"\nconfig = "{far.folder}/ssh_config"\n'
            f'[relay]\nhost = "{far.cluster.controller_address}"\nports = "29750-29799"\n[node]\ncpus = 8\n'
            f'[container]\nruntime = "bubblewrap"\n[paths]\nruns = "{{home}}/kit/{name}"\nstore = "{store}"\n'
            '[defaults.env]\nOMP_NUM_THREADS = "1"\n'
        )


def submit_training(far: Far, steps: int, *more: str) -> tuple[str, str]:
    args = f"--layers 2 --dim 32 --heads 2 --context 32 --batch-size 16 --steps {steps}".split()
    keys = (f"args={json.dumps(args)}", "slurm.extra=[]", "seed=7", "diloco.timeout=30", "diloco.sync_every=10", *more)
    done = far.kit("submit", "--cluster", "alpha,beta", *(word for key in keys for word in ("--set", key)))
    first, second = (Path(line).name for line in done.stdout.split())
    return first, second


@pytest.fixture(scope="module")
def image_store(far: Far, train_cpu: Path) -> Path:
    return store_over_there(far, train_cpu, "frameworks-cpu")


@pytest.mark.slow
def test_it_trains_and_the_logs_of_both_are_followed(far: Far, frameworks_cpu: None, image_store: Path) -> None:
    """Both halves are jobs of one Slurm here, on a node each; their only way to each other is the relay that a laptop started."""
    training_clusters(far, image_store)
    first, second = submit_training(far, 60)
    said = far.kit("logs", "-f", second).stdout
    assert all(f"{name}/replica-0/rank-0 | " in said for name in ("alpha", "beta")), said[-6000:]
    assert {run: far.listed()[run]["state"] for run in (first, second)} == dict.fromkeys((first, second), "COMPLETED")
    finals = [
        line.rpartition(" ")[2] for line in said.splitlines() if "parameters sha256" in line and "/rank-0 | " in line
    ]
    assert len(set(finals)) == 1, finals
    assert "groups [0, 1]" in said
    assert status(far, first)["partner"]["relay"] is None
    assert came(lambda: relay(far, first) is None)


@pytest.mark.slow
def test_a_resumed_half_and_a_relay_that_is_started_again_bring_both_together(
    far: Far, frameworks_cpu: None, image_store: Path
) -> None:
    training_clusters(far, image_store)
    first, second = submit_training(far, 1_000_000, "checkpoint.every=10", 'resources.time="00:20:00"')

    def meet(of_first: list[int], of_second: list[int] | None = None) -> bool:
        """Whether the newest average of each half, or of the first one alone, came to be with these groups."""
        wanted = {first: of_first, second: of_second}
        return came(
            lambda: all(groups(far, run) == found for run, found in wanted.items() if found is not None), seconds=400
        )

    assert meet([0, 1], [0, 1]), logs(far, first, second)
    end_by_slurm(far, second)
    assert meet([0]), logs(far, first, second)
    pid = relay(far, first)
    far.kit("resume", second)
    assert meet([0, 1], [0, 1]), logs(far, first, second)
    assert relay(far, first) == pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert meet([0], [1]), logs(far, first, second)
    assert f"relay gone; 'kit resume {second}' starts it again" in far.kit("status", second).stdout
    assert f"the relay of {first} runs again" in far.kit("resume", second).stderr
    assert status(far, first)["partner"]["relay"] == "up"
    assert meet([0, 1], [0, 1]), logs(far, first, second)
    refused = far.kit("resume", second, check=False)
    assert refused.returncode != 0
    assert "it has not ended" in refused.stderr
    far.kit("cancel", first)
    for run in (first, second):
        far.wait(run, "CANCELLED", "FAILED", "COMPLETED")
    assert came(lambda: relay(far, first) is None)


def groups(far: Far, run: str) -> list[int]:
    quorum = metrics.quorum(there(far, run))
    return [*quorum.groups] if quorum else []


def logs(far: Far, *runs: str) -> str:
    """What the runs said, for a failure."""
    found = [one for run in runs for one in sorted((there(far, run) / "logs").rglob("*.log"))]
    return "\n".join(f"==> {one} <==\n{one.read_text(errors='replace')[-3000:]}" for one in found)
