"""A laptop of namespaces: what it lacks and what it reaches; how often its commands ask a login node that is 100 ms away."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator

import pytest

from kit import data_folders, shell
from kit.slurm.embedded import EmbeddedCluster
from tests.cluster.conftest import short_folder
from tests.cluster.laptop import USER, laptop
from tests.cluster.ssh_lab import Far, far_lab
from tests.support import REPO

pytestmark = [pytest.mark.cluster, pytest.mark.root]

ROUND_TRIP_S = 0.1
# Each address and port, and whether somebody answers there.
CONNECT = """
import json, socket, sys
def answers(host, port):
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True
print(json.dumps([answers(*one) for one in json.loads(sys.argv[1])]))
"""


@pytest.fixture(scope="module")
def far(cluster: EmbeddedCluster) -> Iterator[Far]:
    with (
        short_folder() as folder,
        laptop(folder, rate_bit_s=20e6, delay_s=ROUND_TRIP_S / 2) as made,
        far_lab(cluster, folder, laptop=made) as lab,
    ):
        yield lab


def test_it_has_no_slurm_no_engine_and_no_store_and_reaches_sshd_alone(far: Far) -> None:
    assert far.laptop is not None
    assert far.does("id", "-un").stdout.strip() == USER
    wanted = "sbatch srun squeue scontrol sacct slurmctld munge docker podman enroot"
    assert not far.does("sh", "-c", f"command -v {wanted}", check=False).stdout
    sbatch = shell.which("sbatch")
    assert sbatch is not None
    assert far.does("test", "-e", sbatch, check=False).returncode != 0
    # The kit's own checkout is there, too, where somebody cloned it into /tmp.
    checkout = {REPO.parts[2]} if REPO.parts[:2] == ("/", "tmp") else set()
    assert set(far.does("ls", "/tmp").stdout.split()) == {far.folder.name} | checkout
    assert [far.does("ls", one).stdout for one in ("/home", "/run")] == ["", ""]
    for path in (data_folders.user_data(), far.home, far.cluster.slurm_conf):
        assert far.does("test", "-e", str(path), check=False).returncode != 0, path
    controller = _port_of_controller(far)
    asked = [
        (far.laptop.line.here, far.port),
        (far.laptop.line.here, controller),
        ("127.0.0.1", far.port),
        (far.cluster.controller_address, controller),
    ]
    for one in asked:
        # Somebody listens at each of them, so that it is the laptop's network that leads to one alone.
        address = (far.laptop.line.here, one[1]) if one[0] == "127.0.0.1" else one
        socket.create_connection(address, timeout=10).close()
    assert _answers(far, asked) == [True, False, False, False]


def _port_of_controller(far: Far) -> int:
    (line,) = [line for line in far.cluster.slurm_conf.read_text().splitlines() if line.startswith("SlurmctldPort=")]
    return int(line.partition("=")[2])


def _answers(far: Far, asked: list[tuple[str, int]]) -> list[bool]:
    said: list[bool] = json.loads(far.does(sys.executable, "-c", CONNECT, json.dumps(asked)).stdout)
    return said


@pytest.mark.slow
def test_status_asks_twice_and_a_submit_of_an_unchanged_workspace_six_times(far: Far) -> None:
    far.submit()
    far.requests()
    run = far.submit()
    assert far.requests() <= 6
    far.wait(run, "COMPLETED")
    far.requests()
    assert json.loads(far.kit("status", run, "--json").stdout)["state"] == "COMPLETED"
    assert far.requests() <= 2
