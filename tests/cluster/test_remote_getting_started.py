"""The getting-started page from a laptop that has no Slurm, no engine and no image: its program, data and commands over ssh.

Twice: on a laptop of namespaces, 100 ms from the login node (laptop.py); and, where there can be none, on one whose PATH is short.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kit import shell
from kit.slurm.embedded import EmbeddedCluster
from tests.cluster.conftest import short_folder
from tests.cluster.laptop import laptop
from tests.cluster.ssh_lab import Far, far_lab, store_over_there
from tests.support import REPO

pytestmark = [pytest.mark.cluster, pytest.mark.root, pytest.mark.slow]

PAGE = REPO / "docs/getting-started/index.md"
ROUND_TRIP_S = 0.1
# What a laptop has without namespaces: no command of Slurm's, no container engine.
PROGRAMS = ("sh", "env", "git", "cat", "uname", "id", "hostname")


@pytest.fixture(scope="module", params=["namespaces", "path"])
def far(request: pytest.FixtureRequest, cluster: EmbeddedCluster, train_cpu: Path) -> Iterator[Far]:
    """The lab, with the image in a store over there."""
    if shell.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed: make setup")
    with ExitStack() as stack:
        folder = stack.enter_context(short_folder())
        made = None
        if request.param == "namespaces":
            made = stack.enter_context(laptop(folder, rate_bit_s=20e6, delay_s=ROUND_TRIP_S / 2))
        lab = stack.enter_context(far_lab(cluster, folder, laptop=made))
        store = store_over_there(lab, train_cpu, "train-cpu")
        (lab.project / "clusters" / f"{lab.name}.toml").write_text(
            f'[ssh]\nhost = "login.pod"\nconfig = "{folder}/ssh_config"\n[node]\ncpus = 8\n'
            f'[container]\nruntime = "bubblewrap"\n[paths]\nstore = "{store}"\n'
            '[defaults.resources]\ntime = "00:05:00"\n[defaults.env]\nOMP_NUM_THREADS = "1"\n'
        )
        for name in ("job.toml", "program.py"):
            (lab.project / name).unlink()
        yield lab


def test_the_page_over_ssh(far: Far) -> None:
    env = {"KIT_CLUSTER": far.name}
    if far.laptop is None:
        for name in PROGRAMS:
            (far.folder / "bin" / name).symlink_to(str(shell.which(name)))
        env |= {"PATH": str(far.folder / "bin"), "HOME": str(far.folder), "DOCKER_HOST": "unix:///nonexistent"}

    def kit(*words: str) -> str:
        done = far.kit(*words, check=False, env=env)
        assert done.returncode == 0, (words, done.stderr)
        return f"{done.stdout}\n{done.stderr}"

    assert not far.does("sh", "-c", "command -v sbatch srun docker", check=False, env=env).stdout
    program = re.search(r'```python title="train.py"\n(.*?)```', PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert program is not None
    (far.project / "train.py").write_text(program[1])
    # Data lie over there already; the page's are written by this command.
    (far.home / "data").mkdir()
    (far.home / "data" / "points.csv").write_text("".join(f"{n / 64},{3 * n / 64 + 1}\n" for n in range(64)))
    assert "job.toml" in kit("init", "--script", "train.py")
    job = far.project / "job.toml"
    text = re.sub(r"(?m)^gpus_per_node = .*$", "ranks_per_node = 2", job.read_text())
    mount = 'mounts = [{ source = "{home}/data", target = "/data", flags = ["ro"] }]'
    job.write_text(re.sub(r"(?m)^(script = .*)$", rf"\1\n{mount}", text))
    assert f"{far.home}/data" in kit("render")
    said = kit("submit", "--follow")
    assert re.search(r"rank-0 \| loss [0-9.]+, seed \d+", said), said
    assert "exit code 0" in said
    far.requests()
    assert json.loads(far.kit("status", "--json", env=env).stdout)["state"] == "COMPLETED"
    assert far.requests() <= 2
    assert "it ended well" in kit("why")
    assert "loss" in kit("logs", "--rank", "0", "--tail", "3")
    assert "rank-s" in kit("time")
    assert "digits" in kit("runs") or far.project.name in kit("runs")
    far.requests()
    kit("submit")
    assert far.requests() <= 6
