"""An image from node to node on a cluster of four nodes with a disk and a link each: `image.stage = "chain"`.

The image is train-cpu. Links are limited, so that there is a middle in which a node can be killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kit import shell
from kit.images import image_lock, store
from kit.slurm.embedded import node_links
from tests.cluster.conftest import lab_on
from tests.cluster.lab import Lab, Process
from tests.support import REPO

SLOW, FAST = "200mbit", None
NODES = 4
JOB = """script = "program.py"
shape = "srun"
image = { name = "train-cpu", stage = "chain" }
[resources]
nodes = 4
gpus_per_node = 1
[container]
runtime = "bubblewrap"
"""
LOOK = "import os\nprint('rank', os.environ['RANK'], flush=True)\n"


@dataclass(frozen=True)
class Chained:
    """The cluster, and where each node keeps its images."""

    lab: Lab
    sha256: str
    size: int

    def folder(self, node: str) -> Path:
        return self.lab.cluster.layout.own(node) / "cache" / "images"

    def image(self, node: str) -> Path:
        return self.folder(node) / f"{self.sha256}.sqsh"

    def partial(self, node: str) -> Path:
        return self.folder(node) / f".partial-{self.sha256}"

    @property
    def names(self) -> list[str]:
        return [node.name for node in self.lab.cluster.nodes]

    def forget(self) -> None:
        """Nodes that have no image."""
        for name in self.names:
            shell.run(["rm", "-rf", str(self.folder(name).parent)])
            assert not self.folder(name).exists()

    def submit(self, *options: str) -> Path:
        self.lab.write(JOB, LOOK)
        return self.lab.submit(*options)

    def half(self, run: Path, node: str) -> None:
        """Wait until a node has a part of the image, or all of it: the one that reads the store is quick."""
        self.lab.wait(lambda: self.image(node).exists() or part_of(self.partial(node)) > self.size // 8, run)

    def in_the_middle(self, run: Path) -> str:
        """Wait until a node has a part of the image and not all of it; its name."""

        there: list[str] = []

        def looked() -> bool:
            # A node that takes from another is in the middle for seconds; the one that reads the store, for less than one.
            there[:] = [
                name for name in self.names if self.size // 8 < part_of(self.partial(name)) < self.size * 3 // 4
            ]
            return bool(there)

        self.lab.wait(looked, run)
        return there[-1]

    def in_front(self, run: Path) -> str:
        """Wait until two nodes at least have a part of the image and not all of it; the name of the one that has most."""
        there: list[tuple[int, str]] = []

        def looked() -> bool:
            there[:] = sorted((part_of(self.partial(name)), name) for name in self.names if self.partial(name).exists())
            return len(there) > 1 and self.size // 8 < there[-1][0] < self.size * 3 // 4

        self.lab.wait(looked, run)
        return there[-1][1]

    def program(self, run: Path, node: str) -> Process:
        """The program that passes the image on."""
        there = {one.pid for one in self.lab.node_processes(node)}
        found = [one for one in self.lab.processes(run) if one.pid in there and "image_node.py" in one.line]
        assert found, f"no image_node.py on {node}"
        return found[0]

    def right(self, *names: str) -> None:
        """Each of these nodes has the right bytes, and nothing else is left."""
        for name in names:
            assert store.digest_of(self.image(name)) == self.sha256, name
            assert not self.partial(name).exists()

    def done(self, run: Path) -> dict[str, str]:
        """Until the run has ended and nothing of it is left."""
        job = self.lab.wait_end(run)
        assert self.lab.settled(run) == []
        assert not [*(run / "state").glob("image-chain*")]
        for name in self.names:
            ports = self.lab.inside(name, "ss", "-Hltnp")
            assert "image_node" not in ports and "python" not in ports, ports
        return job


def part_of(path: Path) -> int:
    """Bytes of a file; 0 where it is not there (any more)."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def log(run: Path, name: str = "batch") -> str:
    path = run / "logs" / f"{name}.log"
    return path.read_text() if path.exists() else ""


def events(run: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (run / "state" / "events.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def chained(train_cpu: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chained]:
    lock = image_lock.read_lock(REPO / "containers/train-cpu/image.lock")
    with lab_on("chain", NODES, train_cpu, tmp_path_factory.mktemp("chain")) as lab:
        if not lab.cluster.isolated:
            pytest.skip("nodes with networks of their own take root")
        profile = lab.project / "clusters" / f"{lab.cluster.name}.toml"
        cache = lab.cluster.layout.node / "cache"
        profile.write_text(profile.read_text().replace("[paths]\n", f'[paths]\ncache = "{cache}"\n'))
        yield Chained(lab, lock.sha256, lock.size)


@pytest.fixture(autouse=True)
def cold(chained: Chained) -> Iterator[None]:
    """No node has the image, and links are as fast as they can be."""
    chained.forget()
    node_links.limit(chained.lab.cluster, FAST)
    yield
    node_links.limit(chained.lab.cluster, FAST)


def test_all_nodes_get_the_image_and_the_store_is_read_once(chained: Chained) -> None:
    chained.lab.write(JOB, LOOK)
    run = chained.lab.run()
    assert run.done.returncode == 0, run.log("batch") + run.log("stage")
    chained.right(*chained.names)
    (event,) = (one for one in events(run.folder) if one["event"] == "image")
    assert event["nodes"] == "4"
    # On a busy machine another node may try whether it reads the store faster, and reads a few blocks again.
    assert chained.size <= int(event["store_bytes"]) < 1.1 * chained.size
    said = chained.lab.kit("time", run.folder.name).stdout
    assert f"4 nodes passed the image on to each other in {event['seconds']} s" in said
    chained.done(run.folder)
    # The next job finds the image. The node that lost it takes it from another, or from the store until others have checked theirs.
    chained.image(chained.names[2]).unlink()
    again = chained.lab.run()
    assert again.done.returncode == 0, again.log("batch") + again.log("stage")
    chained.right(*chained.names)
    (event,) = (one for one in events(again.folder) if one["event"] == "image")
    assert int(event["store_bytes"]) <= chained.size


def test_a_killed_sender_continues_and_the_others_do_not_notice(chained: Chained) -> None:
    node_links.limit(chained.lab.cluster, SLOW)
    run = chained.submit()
    os.kill(chained.program(run, chained.in_the_middle(run)).pid, signal.SIGKILL)
    node_links.limit(chained.lab.cluster, FAST)
    assert chained.done(run)["JobState"] == "COMPLETED", log(run) + log(run, "stage")
    chained.right(*chained.names)
    assert "was killed (137); it is started again" in log(run, "stage")
    assert "blocks, which are here" in log(run, "stage")


def test_a_node_that_stands_still_is_passed_by(chained: Chained) -> None:
    """SIGSTOP is a node that hangs: its connections stay open, and nothing comes."""
    node_links.limit(chained.lab.cluster, SLOW)
    run = chained.submit()
    for name in chained.names:
        chained.half(run, name)
    # The others have less than it, or all: those with less take from it, or from one that does.
    still = chained.in_front(run)
    stopped = chained.program(run, still)
    os.kill(stopped.pid, signal.SIGSTOP)
    try:
        node_links.limit(chained.lab.cluster, FAST)
        others = [name for name in chained.names if name != still]
        chained.lab.wait(lambda: all(chained.image(name).exists() for name in others), run)
        # It may have been passed by before, in a trial of another reader of the store: then nobody waits for it.
        assert re.search(rf"{still} (has said nothing|is passed by)", log(run)), log(run)
    finally:
        os.kill(stopped.pid, signal.SIGCONT)
    assert chained.done(run)["JobState"] == "COMPLETED", log(run) + log(run, "stage")
    chained.right(*chained.names)


def test_cancel_in_the_middle_leaves_nothing(chained: Chained) -> None:
    node_links.limit(chained.lab.cluster, SLOW)
    run = chained.submit()
    for name in chained.names:
        chained.half(run, name)
    chained.lab.kit("cancel", run.name)
    assert chained.done(run)["JobState"] == "CANCELLED", log(run)
    for name in chained.names:
        assert not chained.partial(name).exists()
        assert not chained.image(name).exists() or store.digest_of(chained.image(name)) == chained.sha256, name
    assert not all(chained.image(name).exists() for name in chained.names), "it was cancelled in the middle"


def test_a_cut_start_is_continued_by_the_next(chained: Chained) -> None:
    """KILL to everything on two nodes, as at a loss of power. The next start keeps the good blocks."""
    node_links.limit(chained.lab.cluster, SLOW)
    run = chained.submit()
    for name in chained.names:
        chained.half(run, name)
    killed = {p.pid for name in chained.names for p in chained.lab.node_processes(name)}
    for one in chained.lab.processes(run):
        if one.pid in killed and ("stage.sh" in one.line or "image_" in one.line):
            # One that was killed before may have taken it with it.
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)
    assert chained.done(run)["JobState"] == "FAILED", log(run)
    kept = [name for name in chained.names if chained.partial(name).exists()]
    assert kept, "a partial copy stays after KILL"
    node_links.limit(chained.lab.cluster, FAST)
    chained.lab.write(JOB, LOOK)
    again = chained.lab.run()
    assert again.done.returncode == 0, again.log("batch") + again.log("stage")
    chained.right(*chained.names)
    assert "blocks, which are here" in again.log("stage")
    (event,) = (one for one in events(again.folder) if one["event"] == "image")
    assert int(event["store_bytes"]) < chained.size, "what was there is not read again"
    chained.done(again.folder)


def test_a_full_disk_names_its_node(chained: Chained) -> None:
    full = chained.names[2]
    cache = chained.lab.cluster.layout.node / "cache"
    enter = chained.lab.cluster.node_exec_argv(full)
    chained.folder(full).mkdir(parents=True, mode=0o700)
    chained.folder(full).parent.chmod(0o700)
    shell.run([*enter, "mount", "-t", "tmpfs", "-o", "size=50M,mode=700", "tmpfs", str(cache / "images")])
    try:
        chained.lab.write(JOB, LOOK)
        run = chained.lab.run()
        assert run.done.returncode == 72, run.log("batch")
        assert f"the image was not staged on {full}; no rank was started" in run.log("batch")
        said = chained.lab.kit("why", run.folder.name, check=False).stdout
        assert f"{full} did not get the image" in said and "do not fit" in said, said
        chained.right(*(name for name in chained.names if name != full))
        spare = chained.lab.run("--set", "resources.nodes=3", "--set", "retry.spares=1")
        assert spare.done.returncode == 0, spare.log("batch") + spare.log("stage")
        assert "continuing with the spare nodes" in spare.log("batch")
    finally:
        shell.run([*enter, "umount", str(cache / "images")])


def test_a_wrong_block_names_its_sender(chained: Chained) -> None:
    """The file of a node changes below the kit's feet, with its times: only a receiver sees it."""
    chained.lab.write(JOB, LOOK)
    assert chained.lab.run().done.returncode == 0
    wrong, lacking = chained.names[0], chained.names[1:]
    time.sleep(3)
    assert chained.lab.run().done.returncode == 0, "its digest is remembered now"
    for name in lacking:
        chained.image(name).unlink()
    path = chained.image(wrong)
    before = path.stat()
    with path.open("r+b") as stream:
        stream.seek(chained.size // 2)
        byte = stream.read(1)
        stream.seek(chained.size // 2)
        stream.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    _remember(chained, wrong)
    run = chained.lab.run()
    assert run.done.returncode == 72, run.log("batch")
    assert f"{wrong} sent a wrong block" in run.log("batch")
    assert f"the image was not staged on {wrong}; no rank was started" in run.log("batch")
    assert not path.exists(), "the damaged copy is removed"
    chained.right(*lacking)


def _remember(chained: Chained, node: str) -> None:
    """A disk that changes a byte changes no time. Here the inode's time did change, so the node's memory is given the new one."""
    path = chained.image(node)
    inside = chained.lab.cluster.layout.node / "cache" / "images" / path.name
    key = chained.lab.inside(node, "stat", "--format=%d %i %s %.9Y %.9Z", str(inside)).strip()
    (chained.folder(node) / ".verified").write_text(f"{key} {chained.sha256}\n")


def test_another_user_who_connects_gets_nothing(chained: Chained) -> None:
    """From another node, to every port of the chain, while the image is on its way."""
    node_links.limit(chained.lab.cluster, SLOW)
    run = chained.submit()
    for name in chained.names:
        chained.half(run, name)
    heard = 0
    for name in chained.names:
        for line in chained.lab.inside(name, "ss", "-Hltnp").splitlines():
            if "python" not in line:
                continue
            address, _, port = line.split()[3].rpartition(":")
            assert address == str(chained.lab.cluster.node(name).address), "bound to the node's own address"
            knock = f"exec 3<>/dev/tcp/{address}/{port}; head -c 100 /dev/zero >&3; cat <&3 | wc -c"
            user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
            said = chained.lab.inside(chained.names[-1], *user, "timeout", "20", "bash", "-c", knock).strip()
            assert said == "32", "its random number and nothing more"
            heard += 1
    assert heard == len(chained.names) + 1, "a port of each node, and the coordinator's"
    assert not [p for p in (run / "state").glob("image-chain-*") if p.stat().st_mode & 0o077]
    node_links.limit(chained.lab.cluster, FAST)
    assert chained.done(run)["JobState"] == "COMPLETED", log(run) + log(run, "stage")
    chained.right(*chained.names)
    assert "does not know the run's token" in log(run)


def test_a_folder_that_another_user_made_first_is_not_used(chained: Chained) -> None:
    name = chained.names[1]
    chained.folder(name).mkdir(parents=True)
    chained.image(name).write_bytes(b"poison")
    for path in (chained.folder(name).parent, chained.folder(name), chained.image(name)):
        os.chown(path, 65534, 65534)
    chained.lab.write(JOB, LOOK)
    run = chained.lab.run()
    assert run.done.returncode == 72, run.log("batch")
    assert f"the image was not staged on {name}; no rank was started" in run.log("batch")
    assert "belongs to user nobody (65534), not to you" in run.log("batch")
    assert chained.image(name).read_bytes() == b"poison", "nothing of it was touched"
    chained.right(*(one for one in chained.names if one != name))


def test_nodes_that_share_one_folder(chained: Chained) -> None:
    """All nodes with one folder, as virtual nodes of one machine have by default: the lock lets one after the other."""
    profile = chained.lab.project / "clusters" / f"{chained.lab.cluster.name}.toml"
    before = profile.read_text()
    shared = chained.lab.project / "shared-cache"
    profile.write_text(before.replace(str(chained.lab.cluster.layout.node / "cache"), str(shared)))
    try:
        chained.lab.write(JOB, LOOK)
        run = chained.lab.run()
        assert run.done.returncode == 0, run.log("batch") + run.log("stage")
        assert [path.name for path in (shared / "images").glob("*.sqsh")] == [f"{chained.sha256}.sqsh"]
        chained.done(run.folder)
    finally:
        profile.write_text(before)
