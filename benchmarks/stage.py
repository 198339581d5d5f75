"""Measures how an image reaches N nodes: from node to node, by N copies from the store, and by Slurm's sbcast.

    python -m benchmarks stage [--nodes 16] [--rate 100mbit] [--megabytes 96] [--rounds 2]

An embedded cluster has one node more than the jobs: it is the file server of the image store, which the others mount over their
links (_network_file_system.py). Each node sends at the rate, so the file server does, too. A job of the kit then puts an image of
random bytes on its nodes; its phase `image` is measured, from the run's events. The ratio to one node is what counts: two cores
cannot carry 16 links of 1 Gb/s, so the default is a tenth of that, with a smaller image. Needs root, Slurm, tc and /dev/fuse.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks import _network_file_system
from benchmarks._common import Goal, report
from kit import shell
from kit.images import block_list, image_lock
from kit.images.store import digest_of
from kit.slurm.embedded import node_links
from tests.cluster.conftest import lab_on
from tests.cluster.lab import Lab, Run, came
from tests.support import make_lock

PORT = 2049
JOB = """script = "program.py"
shape = "srun"
image = {{ name = "noise", stage = "{stage}" }}
[resources]
nodes = {nodes}
gpus_per_node = 1
[slurm]
exclude = "{server}"
[container]
runtime = "bubblewrap"
[preflight]
enabled = false
[monitor]
enabled = false
"""


@dataclass(frozen=True, kw_only=True)
class Took:
    """One way of one round. served: bytes that the file server sent for it."""

    seconds: float
    served: int


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The cluster, its file server, and the image. store: the path of the image store, on the nodes and on this machine."""

    lab: Lab
    store: Path
    image: Path
    server: str

    @property
    def clients(self) -> list[str]:
        """The nodes of the jobs."""
        return [node.name for node in self.lab.cluster.nodes if node.name != self.server]

    @contextmanager
    def cold_nodes(self) -> Iterator[None]:
        """Nodes that have read nothing and have no image, with the store mounted."""
        with ExitStack() as stack:
            for name in self.clients:
                shutil.rmtree(self.lab.cluster.layout.own(name) / "cache", ignore_errors=True)
                stack.enter_context(self._mounted(name))
            yield

    @contextmanager
    def _mounted(self, name: str) -> Iterator[None]:
        enter = self.lab.cluster.node_exec_argv(name)
        address = str(self.lab.cluster.node(self.server).address)
        words = [sys.executable, _network_file_system.__file__, "mount", address, str(PORT), str(self.store)]
        shell.daemon([*enter, *words], log=self.lab.project / "mounts.log")
        seen = str(self.store / "sha256" / self.image.name)
        if not came(lambda: shell.run([*enter, "test", "-r", seen], check=False).returncode == 0, seconds=30):
            raise SystemExit(f"{name} cannot mount the store: {(self.lab.project / 'mounts.log').read_text()}")
        try:
            yield
        finally:
            shell.run([*enter, "umount", str(self.store)])

    def staged(self, stage: str, nodes: int) -> Took:
        """A job that puts the image on its nodes."""
        self.lab.write(JOB.format(stage=stage, nodes=nodes, server=self.server), "pass\n")
        with self.cold_nodes():
            before = self._served()
            run = self.lab.run()
            served = self._served() - before
            self._check(run, nodes)
        return Took(seconds=_phase(run), served=served)

    def broadcast(self) -> Took:
        """sbcast of the same file to the same nodes, in a job of its own."""
        target = self.lab.cluster.layout.node / "cache" / "broadcast"
        script = (
            f"srun --ntasks-per-node=1 mkdir -p {target.parent}\nbegan=$EPOCHREALTIME\n"
            f'sbcast --force {self.store}/sha256/{self.image.name} {target} || exit 1\necho "$began $EPOCHREALTIME"\n'
        )
        path = self.lab.project / "broadcast.sh"
        path.write_text(f"#!/bin/bash\n{script}")
        with self.cold_nodes():
            before = self._served()
            words = [
                "sbatch",
                "--wait",
                f"--nodes={len(self.clients)}",
                f"--exclude={self.server}",
                "--output=broadcast.out",
            ]
            env = {**os.environ, **self.lab.cluster.env()}
            shell.run([*words, str(path)], cwd=self.lab.project, env=env, timeout=900)
            served = self._served() - before
        began, ended = map(float, (self.lab.project / "broadcast.out").read_text().split()[-2:])
        for name in self.clients:
            copy = self.lab.cluster.layout.own(name) / "cache" / "broadcast"
            assert copy.stat().st_size == self.image.stat().st_size, f"sbcast left {copy} short"
        return Took(seconds=ended - began, served=served)

    def _served(self) -> int:
        return node_links.sent_by(self.lab.cluster, self.server)

    def _check(self, run: Run, nodes: int) -> None:
        """Every node of the job must have the right bytes."""
        digest = self.image.stem
        found = 0
        for name in self.clients:
            copy = self.lab.cluster.layout.own(name) / "cache" / "images" / self.image.name
            if copy.exists():
                assert digest_of(copy) == digest, name
                found += 1
        if found != nodes:
            raise SystemExit(f"{found} of {nodes} nodes have the image\n{run.log('batch')}\n{run.log('stage')}")


def _phase(run: Run) -> float:
    """Seconds from the phase `image` to the next."""
    lines = (run.folder / "state" / "events.jsonl").read_text().splitlines()
    at = {event["name"]: float(event["epoch"]) for event in map(json.loads, lines) if event["event"] == "phase"}
    return at["preflight"] - at["image"]


@contextmanager
def bench(nodes: int, rate: str, megabytes: int) -> Iterator[Bench]:
    """A cluster with limited links and a file server."""
    with TemporaryDirectory(prefix="kit-stage-") as name:
        project = Path(name) / "project"
        Path(name).chmod(0o755)
        project.mkdir()
        with lab_on("stage", nodes + 1, Path("/nowhere"), project) as lab:
            store = lab.cluster.layout.node / "store"
            image = _image(lab, store, megabytes)
            profile = project / "clusters" / f"{lab.cluster.name}.toml"
            cache = lab.cluster.layout.node / "cache"
            profile.write_text(
                profile.read_text().replace('store = "/nowhere"', f'store = "{store}"\ncache = "{cache}"')
            )
            server = lab.cluster.nodes[-1]
            for node in lab.cluster.nodes:
                (lab.cluster.layout.own(node.name) / "store").mkdir()
            # At this path each node sees its own folder, and so does the file server.
            shutil.copytree(
                store, lab.cluster.layout.own(server.name) / "store", copy_function=os.link, dirs_exist_ok=True
            )
            words = [sys.executable, _network_file_system.__file__, "serve", str(store), str(server.address)]
            pid = shell.daemon(
                [*lab.cluster.node_exec_argv(server.name), *words, str(PORT)], log=project / "server.log"
            )
            node_links.limit(lab.cluster, rate)
            try:
                yield Bench(lab=lab, store=store, image=image, server=server.name)
            finally:
                os.kill(pid, 9)
                os.waitpid(pid, 0)


def _image(lab: Lab, store: Path, megabytes: int) -> Path:
    """An image of random bytes, with lock and list of blocks, as a build leaves them."""
    # Beside the project: a run takes its workspace with it, without files of this size.
    tree, folder = lab.project.parent / "tree", store / "sha256"
    tree.mkdir()
    folder.mkdir(parents=True)
    (tree / "noise").write_bytes(random.Random(megabytes).randbytes(megabytes * 1_000_000))
    unnamed = folder / "unnamed"
    shell.run(["mksquashfs", str(tree), str(unnamed), "-noDataCompression", "-quiet", "-no-progress"])
    sha256, size = digest_of(unnamed), unnamed.stat().st_size
    image = unnamed.rename(folder / f"{sha256}.sqsh")
    image.with_suffix(block_list.SUFFIX).write_text(block_list.text(image, sha256))
    made = make_lock("noise").model_copy(update={"sha256": sha256, "size": size})
    (lab.project / "containers" / "noise").mkdir(parents=True)
    image_lock.write_lock(lab.project / "containers" / "noise" / image_lock.FILE, made)
    return image


def main(options: Sequence[str]) -> int:
    """Return 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--rate", default="100mbit", help="of each node's sending, as tc(8) takes it")
    parser.add_argument("--megabytes", type=int, default=96, help="of the image")
    parser.add_argument(
        "--rounds", type=int, default=2, help="of one node and of the chain, in turn; the others run once"
    )
    asked = parser.parse_args(options)
    with bench(asked.nodes, asked.rate, asked.megabytes) as lab:
        pairs = [(lab.staged("node", 1), lab.staged("chain", asked.nodes)) for _ in range(asked.rounds)]
        copies, broadcast = lab.staged("node", asked.nodes), lab.broadcast()
    one, chain = (median(pair[n].seconds for pair in pairs) for n in (0, 1))
    size = asked.megabytes * 1e6
    rows = [("one node, from the store", one, pairs[0][0]), (f"{asked.nodes} nodes, chain", chain, pairs[0][1])]
    rows += [(f"{asked.nodes} copies from the store", copies.seconds, copies), ("sbcast", broadcast.seconds, broadcast)]
    print(
        f"{asked.megabytes} MB, links of {asked.rate}, load average {os.getloadavg()[0]:.1f}, {time.strftime('%Y-%m-%d')}\n"
    )
    print("| way | s | s / one node | the file server sent, images |\n|---|---|---|---|")
    for name, seconds, took in rows:
        print(f"| {name} | {seconds:.1f} | {seconds / one:.2f} | {took.served / size:.2f} |")
    print()
    worst = max(pair[1].served for pair in pairs) / size
    return report(
        [
            Goal(name=f"chain of {asked.nodes} nodes / one node", value=chain / one, bound=1.3),
            # Headers of TCP and of the file system are a twentieth.
            Goal(name="images that the file server sent for the chain", value=worst, bound=1.1),
            Goal(name=f"{asked.nodes} copies / chain", value=copies.seconds / chain),
            Goal(name="sbcast / chain", value=broadcast.seconds / chain),
        ]
    )
