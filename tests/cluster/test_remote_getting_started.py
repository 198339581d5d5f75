"""The getting-started page from a laptop that has no Slurm, no engine and no image: its program, data and commands over ssh."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import shell
from kit.slurm.embedded import EmbeddedCluster
from tests.cluster.conftest import short_folder
from tests.cluster.lab import TIMEOUT_S
from tests.cluster.ssh_lab import Far, far_lab, store_over_there
from tests.support import REPO

pytestmark = [pytest.mark.cluster, pytest.mark.root, pytest.mark.slow]

PAGE = REPO / "docs/getting-started/index.md"
# What a laptop has: no command of Slurm's, no container engine.
PROGRAMS = ("sh", "env", "git", "cat", "uname", "id", "hostname")


@pytest.fixture(scope="module")
def far(cluster: EmbeddedCluster, train_cpu: Path) -> Iterator[Far]:
    """The lab, with the image in a store over there."""
    if shell.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed: make setup")
    with short_folder() as folder, far_lab(cluster, folder) as lab:
        store = store_over_there(lab, train_cpu, "train-cpu")
        for name in PROGRAMS:
            (folder / "bin" / name).symlink_to(str(shell.which(name)))
        (lab.project / "clusters" / f"{lab.name}.toml").write_text(
            f'[ssh]\nhost = "login.pod"\nconfig = "{folder}/ssh_config"\n[node]\ncpus = 8\n'
            f'[container]\nruntime = "bubblewrap"\n[paths]\nstore = "{store}"\n'
            '[defaults.resources]\ntime = "00:05:00"\n[defaults.env]\nOMP_NUM_THREADS = "1"\n'
        )
        for name in ("job.toml", "program.py"):
            (lab.project / name).unlink()
        yield lab


def test_the_page_over_ssh(far: Far) -> None:
    env = {
        "PATH": str(far.folder / "bin"),
        "KIT_CLUSTER": far.name,
        "HOME": str(far.folder),
        "DOCKER_HOST": "unix:///nonexistent",
    }

    def kit(*words: str) -> str:
        done = shell.run(
            [sys.executable, "-m", "kit", *words],
            cwd=far.project,
            env={**far.env, **env},
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, (words, done.stderr)
        return f"{done.stdout}\n{done.stderr}"

    assert not any(os.access(far.folder / "bin" / name, os.X_OK) for name in ("sbatch", "srun", "docker"))
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
    assert json.loads(kit("status", "--json"))["state"] == "COMPLETED"
    assert "it ended well" in kit("why")
    assert "loss" in kit("logs", "--rank", "0", "--tail", "3")
    assert "rank-s" in kit("time")
    assert "digits" in kit("runs") or far.project.name in kit("runs")
