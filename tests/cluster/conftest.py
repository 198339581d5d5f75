"""A real cluster for the whole session."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from kit import data_folders, shell
from kit.errors import KitError
from kit.images import check_against_lock, image_lock
from kit.images.sources.engine import Engine
from kit.slurm.embedded import ClusterSize, EmbeddedCluster, daemons, down, up
from kit.slurm.embedded.conf import parse_version
from tests.cluster.image_lab import engine_of_one_module, import_base
from tests.cluster.lab import Lab, mounts_of
from tests.support import REPO


@pytest.fixture(scope="session")
def cluster() -> Iterator[EmbeddedCluster]:
    """Two nodes with four placeholder GPUs each, as root isolated from each other; taken down at the end."""
    skip_without_slurm()
    name = f"kit-test-{os.getpid()}"
    with short_folder() as parent:
        folder = parent / "cluster"
        try:
            yield up(name, ClusterSize(nodes=2, gpus_per_node=4, placeholder_gpus=True), folder=folder)
        finally:
            down(name, folder=folder)


@pytest.fixture
def own_folder() -> Iterator[Path]:
    """A folder, not yet there, for a cluster of the test's own; whatever the test leaves of it is taken down."""
    skip_without_slurm()
    with short_folder() as parent:
        try:
            yield parent / "own"
        finally:
            down("own", folder=parent / "own")


def skip_without_slurm() -> None:
    if shell.which("slurmctld") is None:
        pytest.skip("slurmctld is not installed: make setup")


@contextmanager
def short_folder() -> Iterator[Path]:
    """Short enough a path for Slurm's sockets, and one that other users may enter."""
    folder = Path(tempfile.mkdtemp(prefix="kit-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def train_cpu() -> Path:
    """The image that the examples run in, built when it is not there; the folder of its store."""
    store = data_folders.user_data() / "images"
    try:
        check_against_lock.check(image_lock.read_lock(REPO / "containers/train-cpu/image.lock"), store, full=False)
    except KitError:
        done = shell.run([sys.executable, "-m", "kit", "build-image", "train-cpu"], cwd=REPO, check=False, timeout=1200)
        if done.returncode != 0:
            pytest.skip(f"the train-cpu image cannot be built here: {done.stderr.splitlines()[-1:]}")
    return store


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """The Docker Engine, with a small base."""
    with engine_of_one_module() as found:
        import_base(found, tmp_path_factory.mktemp("base"))
        yield found


@pytest.fixture
def frameworks_cpu(train_cpu: Path) -> None:
    """Skips where the image that holds torchft is not in the store."""
    try:
        check_against_lock.check(
            image_lock.read_lock(REPO / "containers/frameworks-cpu/image.lock"), train_cpu, full=False
        )
    except KitError:
        pytest.skip("image frameworks-cpu is not in the store: kit build-image frameworks-cpu")


@pytest.fixture(scope="session")
def lab(cluster: EmbeddedCluster, train_cpu: Path, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A project folder whose `--cluster <name>` is the test cluster."""
    return project_on(cluster, train_cpu, tmp_path_factory.mktemp("lab"))


@contextmanager
def lab_on(
    purpose: str,
    nodes: int,
    store: Path,
    project: Path,
    conf: Mapping[str, str] | None = None,
    *,
    accounting: bool = False,
    cpus: int | None = None,
) -> Iterator[Lab]:
    """A project on a cluster of its own, with what a site sets in slurm.conf, taken down at the end."""
    skip_without_slurm()
    name = f"kit-{purpose}-{os.getpid()}"
    with short_folder() as parent:
        folder = parent / "cluster"
        try:
            shape = ClusterSize(
                nodes=nodes,
                gpus_per_node=4,
                cpus_per_node=cpus,
                placeholder_gpus=True,
                conf=dict(conf or {}),
                accounting=accounting,
            )
            yield project_on(up(name, shape, folder=folder), store, project)
        finally:
            down(name, folder=folder)


# From this release on, slurmctld notes nodes' answers to a ping up to two seconds late, and may have begun the next ping by then.
_NOTES_LATE = (23, 11)


def _notice_soon() -> dict[str, str]:
    """A lost node is noticed in half a minute at most. On a busy machine that is too soon, so only few tests have it.

    A ping that meets a dead slurmd takes ten seconds, MessageTimeout and two more, and holds back the other nodes' answers. A ping
    leaves out a node that has answered something else in the last SlurmdTimeout / 3, such as the node where a job was just
    launched. After the next two pings such a node seems silent for too long, if its answer is noted late: with 8 s, Slurm gave it
    up with the dead one in four of ten cases. With 18 s it cannot.
    """
    skip_without_slurm()
    late = parse_version(shell.run([daemons.program("slurmctld"), "-V"]).stdout) >= _NOTES_LATE
    return {"SlurmdTimeout": "18" if late else "8", "MessageTimeout": "8"}


_URGENT_PARTITION = {
    "PreemptType": "preempt/partition_prio",
    "PreemptMode": "REQUEUE",
    "SlurmctldParameters": "preempt_send_user_signal",
    "PartitionName": "urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE State=UP",
}


@pytest.fixture(scope="session")
def spare_lab(train_cpu: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A project on a cluster of three nodes, one more than its jobs need, for tests that break a node and mend it again."""
    with lab_on("spare", 3, train_cpu, tmp_path_factory.mktemp("spare"), _notice_soon()) as lab:
        yield lab


@pytest.fixture(scope="session")
def wide_lab(train_cpu: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A project on a cluster of four nodes, for roles with two nodes each."""
    with lab_on("wide", 4, train_cpu, tmp_path_factory.mktemp("wide")) as lab:
        yield lab


@pytest.fixture(scope="session")
def preempting_lab(train_cpu: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A project on a cluster whose partition `urgent` may take the nodes of the default one: its jobs go back to the queue."""
    with lab_on("urgent", 2, train_cpu, tmp_path_factory.mktemp("urgent"), _URGENT_PARTITION) as lab:
        yield lab


def project_on(cluster: EmbeddedCluster, store: Path, project: Path) -> Lab:
    """A project folder whose `--cluster <name>` is `cluster`."""
    (project / ".git").mkdir()
    (project / "clusters").mkdir()
    (project / "clusters" / f"{cluster.name}.toml").write_text(
        f'embedded = true\n[node]\ncpus = 8\ngpus = 4\n[paths]\nstore = "{store}"\n'
        f'[defaults]\nimage = "train-cpu"\n[defaults.resources]\nnodes = 2\ngpus_per_node = 2\ntime = "00:05:00"\n'
        f'[defaults.env]\nOMP_NUM_THREADS = "1"\n',
        encoding="utf-8",
    )
    data = project / "xdg"
    (data / "kit" / "clusters").mkdir(parents=True)
    (data / "kit" / "clusters" / cluster.name).symlink_to(cluster.folder)
    mounted = frozenset(line for node in cluster.nodes for line in mounts_of(cluster, node.name))
    return Lab(project, cluster, {"XDG_DATA_HOME": str(data), "KIT_TRACEBACK": "0"}, mounted)


@pytest.fixture(params=["bubblewrap", "pyxis", "enroot", "bare"])
def runtime(request: pytest.FixtureRequest, cluster: EmbeddedCluster) -> str:
    """Each container runtime that this machine has; the others are skipped by name."""
    return _there(str(request.param), cluster)


@pytest.fixture
def runtime_of(cluster: EmbeddedCluster) -> Callable[[str], list[str]]:
    """The options of `kit submit` for a runtime by name, which is skipped where the machine has none."""

    def options(name: str) -> list[str]:
        return ["--no-container"] if _there(name, cluster) == "bare" else ["--set", f"container.runtime={name}"]

    return options


def _there(name: str, cluster: EmbeddedCluster) -> str:
    if name == "pyxis" and not cluster.has_pyxis:
        pytest.skip("Pyxis and Enroot are not on this machine")
    if name == "enroot" and shell.which("enroot") is None:
        pytest.skip("Enroot is not on this machine")
    if name == "bubblewrap" and shell.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed: make setup")
    return name
