"""A cluster of four nodes on which ranks, disks, links and clocks fall ill."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from kit import shell
from tests.cluster.conftest import lab_on
from tests.cluster.lab import Lab
from tests.cluster.storm import is_lighthouse
from tests.sick.faults import SICK_NODE

NODES = 4
_SKEW_S = 300
# Of a file of 256 MB a rank reads another part at each step.
_DISK_MB = 256


class Ward:
    """The cluster, and what can be done to its third node."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        self.node = self.name(SICK_NODE)
        self._disks: list[int] = []

    def name(self, number: int) -> str:
        """Of a node, from 1."""
        return f"{self.lab.cluster.name}-{number}"

    def stop_disk(self, run: Path) -> Callable[[], object]:
        """Once a rank is about to read, the daemon that serves its file system stops. The way back."""
        self.lab.wait((run / "fault-ready").exists, run)
        self._signal(signal.SIGSTOP)
        (run / "fault-go").touch()
        return lambda: self._signal(signal.SIGCONT)

    def slow_disk(self, run: Path) -> Callable[[], object]:
        """The daemon works for a hundredth of the time."""
        over = threading.Event()

        def slow() -> None:
            while not over.is_set():
                self._signal(signal.SIGSTOP)
                time.sleep(3)
                self._signal(signal.SIGCONT)
                time.sleep(0.03)

        self.lab.wait((run / "fault-ready").exists, run)
        thread = threading.Thread(target=slow)
        thread.start()
        (run / "fault-go").touch()

        def end() -> None:
            over.set()
            thread.join()

        return end

    def cut_link(self, run: Path) -> Callable[[], object]:
        """Between two steps."""
        self.lab.wait((run / "fault-may-begin").exists, run)
        began(run)
        self.lab.inside(self.node, "ip", "link", "set", "eth0", "down")

        def mend() -> None:
            self.lab.inside(self.node, "ip", "link", "set", "eth0", "up")
            self.lab.wait_nodes()

        return mend

    def stop_lighthouse(self, run: Path) -> Callable[[], object]:
        """It listens, and does not answer. After three questions the batch script kills it, and starts it again."""
        self.lab.wait((run / "fault-may-begin").exists, run)
        found = [p.pid for p in self.lab.processes(run) if is_lighthouse(p)]
        assert found, "the lighthouse is there"
        began(run)
        for pid in found:
            os.kill(pid, signal.SIGSTOP)

        def mend() -> None:
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

        return mend

    def kill_lighthouse(self, run: Path) -> Callable[[], object]:
        """At once, and each one that the batch script starts in its place."""
        over = threading.Event()

        def kill() -> None:
            while not over.is_set():
                for one in self.lab.processes(run):
                    if is_lighthouse(one):
                        with suppress(ProcessLookupError):
                            os.kill(one.pid, signal.SIGKILL)
                time.sleep(0.2)

        self.lab.wait((run / "fault-may-begin").exists, run)
        thread = threading.Thread(target=kill)
        began(run)
        thread.start()

        def end() -> None:
            over.set()
            thread.join()

        return end

    def wrong_clock(self, run: Path) -> Callable[[], object]:
        """For the ranks of the node, which program.py turns, and for its collector."""
        self.lab.wait((run / "fault-may-begin").exists, run)
        (run / "clock-wrong").touch()
        began(run)
        return lambda: None

    def collector_with_a_clock(self, run: Path) -> AbstractContextManager[None]:
        """On the node, of a run that has not begun."""
        return wrong_clock(self.lab, run, self.node, self.folder / "rank_progress.sh")

    def _signal(self, number: int) -> None:
        for pid in self._disks:
            os.kill(pid, number)

    def mount_disks(self) -> None:
        """A file system by FUSE on every node, at the folder that the job mounts as /data."""
        data = self.folder / "data"
        (self.folder / "files").mkdir()
        with (self.folder / "files" / "train.bin").open("wb") as file:
            for _ in range(_DISK_MB):
                file.write(os.urandom(1 << 20))
        image = self.folder / "data.sqsh"
        shell.run(["mksquashfs", str(self.folder / "files"), str(image), "-noD", "-noI", "-noX", "-noF", "-quiet"])
        shutil.rmtree(self.folder / "files")
        data.mkdir()
        for node in self.lab.cluster.nodes:
            self.lab.inside(node.name, "squashfuse", "-o", "allow_other", str(image), str(data))
        self._disks = [
            p.pid for p in self.lab.node_processes(self.node) if "squashfuse" in p.argv[0] and str(image) in p.argv
        ]
        assert self._disks, "the disk of the sick node is mounted"


@contextmanager
def wrong_clock(lab: Lab, run: Path, node: str, copy: Path) -> Iterator[None]:
    """On the node, the collector of a run that has not begun reads a clock that `clock-wrong` in its folder puts ahead.

    The machine has one clock for all nodes. copy: a file that is not there, for the collector with such a clock.
    """
    path = run / "lib" / "rank_progress.sh"
    asked = '"${EPOCHREALTIME/,/.}" "${line}"'
    text = path.read_text(encoding="utf-8")
    assert asked in text
    ahead = f"[[ ! -e {run}/clock-wrong ]] || now=$((${{now%.*}} + {_SKEW_S})).0"
    clock = f"clock() {{ local now=${{EPOCHREALTIME/,/.}}; {ahead}; printf '%s' \"${{now}}\"; }}"
    changed = text.replace(asked, '"$(clock)" "${line}"')
    copy.write_text(f"{changed}\n{clock}\n", encoding="utf-8")
    lab.inside(node, "mount", "--bind", str(copy), str(path))
    try:
        yield
    finally:
        lab.inside(node, "umount", "--lazy", str(path))


def began(run: Path) -> None:
    """A fault that the program does not do itself."""
    (run / "fault-began").write_text(str(time.time()))


@contextmanager
def ward(store: Path, folder: Path) -> Iterator[Ward]:
    """Taken down at the end. folder: empty; for what the nodes share."""
    project = folder / "project"
    project.mkdir()
    # A node that is cut off is not given up while the stall is looked at.
    conf = {"SlurmdTimeout": "120"}
    with lab_on("sick", NODES, store, project, conf) as lab:
        made = Ward(lab, folder)
        made.mount_disks()
        try:
            yield made
        finally:
            made._signal(signal.SIGCONT)
            for node in lab.cluster.nodes:
                lab.inside(node.name, "umount", "--lazy", str(folder / "data"))
