"""One DiLoCo training on two embedded clusters: it learns as on one, ends as one, and outlives the loss of either half."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kit import data_folders
from kit.errors import KitError
from kit.hosts import pair_relay
from kit.images import check_against_lock, image_lock
from kit.record import metrics
from kit.slurm.embedded import ClusterSize, down, up
from tests.cluster.conftest import project_on, short_folder, skip_without_slurm
from tests.cluster.lab import Lab
from tests.support import REPO

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SMALL = ["--layers", "2", "--dim", "32", "--heads", "2", "--context", "32", "--batch-size", "16", "--warmup", "20"]


class Two:
    """Two clusters of one node each, and a project that knows both. options: of `kit submit`."""

    def __init__(self, first: Lab, second: Lab, options: list[str]) -> None:
        self.first, self.second, self._options = first, second, options

    @property
    def labs(self) -> tuple[Lab, Lab]:
        return self.first, self.second

    def submit(self, steps: int, *more: str) -> tuple[Path, Path]:
        """Submit the example over both clusters; the run folders."""
        names = f"{self.first.cluster.name},{self.second.cluster.name}"
        done = self.first.kit("submit", "--cluster", names, *self._set(steps, *more))
        first, second = map(Path, done.stdout.split())
        return first, second

    def alone(self, steps: int) -> Path:
        """The same job on the first cluster alone, both groups on its node."""
        more = ("resources.nodes=1", "diloco.replicas_per_node=2", "diloco.across=false")
        return self.first.run(*self._set(steps, *more)).folder

    def _set(self, steps: int, *more: str) -> list[str]:
        args = json.dumps(["--steps", str(steps), *SMALL])
        words = [f"args={args}", "seed=7", "checkpoint.every=5", "diloco.timeout=30", *more]
        return [*self._options, *(word for text in words for word in ("--set", text))]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    """In the image where it is in the store, else on the nodes as they are with what `make training` installs."""
    skip_without_slurm()
    store = data_folders.user_data() / "images"
    setup, options = "", []
    try:
        check_against_lock.check(image_lock.read_lock(REPO / "containers/frameworks-cpu/image.lock"), store, full=False)
    except KitError:
        if not (REPO / ".train-venv/bin/torchft_lighthouse").exists():
            pytest.skip("neither image frameworks-cpu nor .train-venv is there (make training)")
        setup, options = f'setup = ["export PATH={REPO}/.train-venv/bin:$PATH"]\n', ["--no-container"]
    project = tmp_path_factory.mktemp("two")
    with short_folder() as one, short_folder() as other:
        folders = {"kit-first": one / "c", "kit-second": other / "c"}
        try:
            shape = ClusterSize(nodes=1, gpus_per_node=0)
            made = {name: up(name, shape, folder=folder) for name, folder in folders.items()}
            first = project_on(made["kit-first"], store, project)
            for name, cluster in made.items():
                # The nodes of each have a network of their own, in which this machine has the controller's address.
                relay = f'[relay]\nhost = "{cluster.controller_address}"\nports = "29650-29699"\n'
                (project / "clusters" / f"{name}.toml").write_text(
                    f'embedded = true\n{setup}{relay}[node]\ncpus = 4\n[paths]\nstore = "{store}"\n'
                    '[defaults.resources]\ntime = "00:20:00"\n[defaults.env]\nOMP_NUM_THREADS = "1"\n'
                )
                link = project / "xdg" / "kit" / "clusters" / name
                if not link.exists():
                    link.symlink_to(cluster.folder)
            text = (REPO / "examples/diloco-two-clusters/job.toml").read_text(encoding="utf-8")
            (project / "job.toml").write_text(text, encoding="utf-8")
            yield Two(first, replace(first, cluster=made["kit-second"]), options)
        finally:
            for name, folder in folders.items():
                down(name, folder=folder)


def log(*runs: Path) -> str:
    """What the two runs said, for a failure."""
    found = [one for run in runs for one in sorted((run / "logs").rglob("*.log"))]
    return "\n".join(f"==> {one} <==\n{one.read_text(errors='replace')[-3000:]}" for one in found)


def records(run: Path, kind: str) -> list[dict[str, Any]]:
    return [record for record in metrics.records(run) if record["kind"] == kind]


def groups(run: Path) -> list[int]:
    quorum = metrics.quorum(run)
    return [*quorum.groups] if quorum else []


def relay_of(run: Path) -> int | None:
    return pair_relay.process(run)


def nothing_left(two: Two, first: Path, second: Path) -> None:
    two.first.wait(lambda: relay_of(first) is None, first)
    for lab, run in zip(two.labs, (first, second), strict=True):
        assert lab.settled(run) == [], log(first, second)


def test_two_clusters_learn_as_one_does_and_leave_nothing(two: Two) -> None:
    first, second = two.submit(200)
    for lab, run in zip(two.labs, (first, second), strict=True):
        assert lab.wait_end(run, seconds=500)["JobState"] == "COMPLETED", log(first, second)
    finals = [*records(first, "final"), *records(second, "final")]
    assert [final["replica"] for final in finals] == [0, 1]
    assert finals[0]["sha256"] == finals[1]["sha256"]
    assert {tuple(record["groups"]) for record in records(first, "outer")} == {(0, 1)}
    nothing_left(two, first, second)
    alone = records(two.alone(200), "final")[0]
    assert finals[0]["test_loss"] == pytest.approx(alone["test_loss"], rel=0.02)


def test_status_names_both_and_cancel_of_one_ends_both(two: Two) -> None:
    first, second = two.submit(1_000_000)
    two.first.wait(lambda: groups(first) == groups(second) == [0, 1], first, seconds=400)
    seen: Any = two.first.status(first)["partner"]
    assert (seen["run"], seen["cluster"], seen["state"]) == (second.name, two.second.cluster.name, "RUNNING")
    assert (seen["relay"], relay_of(first) is not None) == ("up", True)
    assert second.name in two.first.kit("status", first.name).stdout
    said = two.first.kit("cancel", second.name).stderr
    assert said.count("cancelled") == 2, said
    for lab, run in zip(two.labs, (first, second), strict=True):
        assert lab.wait_end(run)["JobState"] in {"COMPLETED", "CANCELLED", "FAILED"}
    nothing_left(two, first, second)


@pytest.mark.parametrize("which", [0, 1], ids=["first", "second"])
def test_a_cluster_is_preempted_and_comes_back(two: Two, which: int) -> None:
    """The other half continues alone, and gives it the state when it is back."""
    runs = two.submit(1_000_000, "slurm.requeue=true")
    goes, stays = runs[which], runs[1 - which]
    lab = two.labs[which]
    two.first.wait(lambda: groups(stays) == [0, 1], stays, seconds=400)
    number = lab.job(goes)["JobId"]
    lab.slurm("scontrol", "requeue", number)
    two.first.wait(lambda: groups(stays) == [1 - which], stays, seconds=400)
    before = records(stays, "outer")[-1]["outer_step"]
    two.first.wait(lambda: records(stays, "outer")[-1]["outer_step"] > before + 2, stays, seconds=400)
    lab.slurm("scontrol", "release", number, check=False)
    two.first.wait(lambda: groups(stays) == [0, 1], stays, seconds=500)
    numbers = [record["outer_step"] for record in records(stays, "outer")]
    assert numbers == list(range(1, len(numbers) + 1)), "an average was lost or done twice"
    two.first.kit("cancel", runs[0].name)
    for one, run in zip(two.labs, runs, strict=True):
        one.wait_end(run)
    nothing_left(two, *runs)
