"""Passing an image on from node to node, with the real programs on addresses of this machine.

They are image_chain.sh, image_coordinator.py, image_node.py and what these import: image_blocks.py, image_orders.py,
image_sender.py, image_share.py, image_taker.py, node_wire.py.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kit import shell
from kit.images import block_list
from tests import laid_out
from tests.support import NODE, NODE_PYTHON, write_libraries


def library(name: str) -> Any:
    """A module of templates/kit_node, which imports its neighbours."""
    sys.path.insert(0, str(NODE))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(NODE))


image_blocks, image_chain, image_orders, image_share, image_taker, node_wire = map(
    library, ("image_blocks", "image_chain", "image_orders", "image_share", "image_taker", "node_wire")
)
MEBIBYTE = 1 << 20


def came(condition: Callable[[], object], seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


class Nodes:
    """A store with one image, a coordinator, and nodes with a folder each. What is left running is killed at the end."""

    def __init__(self, folder: Path, size: int) -> None:
        self.run, self.store = folder / "run", folder / "store"
        for path in (self.run / "state" / "stage", self.store):
            path.mkdir(parents=True)
        shutil.copytree(laid_out.BIN, self.run / "bin")
        write_libraries(self.run)
        self.content = random.Random(size).randbytes(size)
        self.sha256 = hashlib.sha256(self.content).hexdigest()
        self.stored = self.store / f"{self.sha256}.sqsh"
        self.stored.write_bytes(self.content)
        self.meeting, self.summary = self.run / "state" / "meeting", self.run / "state" / "summary"
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def coordinate(self, nodes: int) -> subprocess.Popen[str]:
        """Start the coordinator, and wait for its file."""
        words = [str(self.meeting), "127.0.0.1", str(nodes), str(self.stored), self.sha256, str(self.summary)]
        made = self._start("coordinator", [NODE_PYTHON, "-BEsS", str(self.run / "lib/image_coordinator.py"), *words])
        assert came(self.meeting.exists)
        return made

    def list_blocks(self) -> None:
        """The list of blocks, as a build leaves it in the store."""
        with self.stored.open("rb") as stream:
            made = image_blocks.make(stream.fileno())
        self.stored.with_suffix(".blocks").write_text(made.text())

    def start(self, name: str, **env: str) -> subprocess.Popen[str]:
        """stage.sh on a node, in a process group of its own, as in a step of Slurm."""
        words = [str(self.run / "bin/stage.sh"), str(self.stored), self.sha256, str(self.folder(name)), "10000000"]
        return self._start(name, words, SLURMD_NODENAME=name, KIT_IMAGE_CHAIN=str(self.meeting), **env)

    def _start(self, name: str, words: list[str], **env: str) -> subprocess.Popen[str]:
        log = (self.run / f"{name}.log").open("a")
        made = subprocess.Popen(
            words, env={**os.environ, **env}, stderr=log, stdout=log, text=True, start_new_session=True
        )
        log.close()
        self.processes[name] = made
        return made

    def folder(self, name: str) -> Path:
        return self.run.parent / name / "images"

    def image(self, name: str) -> Path:
        return self.folder(name) / f"{self.sha256}.sqsh"

    def partial(self, name: str) -> Path:
        return self.folder(name) / f".partial-{self.sha256}"

    def log(self, name: str) -> str:
        path = self.run / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def logs(self) -> str:
        return "".join(f"== {path.name}\n{path.read_text()}" for path in sorted(self.run.glob("*.log")))

    def code(self, name: str) -> int:
        return self.processes[name].wait(timeout=90)

    def program(self, name: str) -> int:
        """The pid of a node's Python."""
        found = shell.run(["pgrep", "-P", str(self.processes[name].pid), "-f", "image_node.py"], check=False).stdout
        return int(found.split()[0]) if found else 0

    def ended(self, name: str) -> bool:
        """Whether no process of a node is left."""
        return not shell.run(["pgrep", "-g", str(self.processes[name].pid)], check=False).stdout

    def facts(self) -> dict[str, str]:
        return dict(line.split(" ", 1) for line in self.summary.read_text().splitlines())

    def all_right(self, *names: str) -> None:
        """Every node has the right bytes, and nothing else is left in its folder."""
        for name in names:
            assert self.code(name) == 0, self.logs()
            assert self.image(name).read_bytes() == self.content
            assert not self.partial(name).exists()
        assert self.processes["coordinator"].wait(timeout=60) == 0, self.logs()
        assert not self.meeting.exists()

    def end(self) -> None:
        for one in self.processes.values():
            try:
                os.killpg(one.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            one.wait()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path, 24 * MEBIBYTE + 12345)
    yield made
    made.end()


def test_one_node_reads_the_store_and_all_get_the_right_bytes(nodes: Nodes) -> None:
    nodes.list_blocks()
    nodes.coordinate(4)
    names = ["a", "b", "c", "d"]
    for name in names:
        nodes.start(name)
    nodes.all_right(*names)
    assert nodes.facts()["nodes"] == "4"
    assert nodes.facts()["store_bytes"] == str(len(nodes.content)), "one image's worth"


def test_without_a_list_the_first_node_copies_the_image_and_makes_it(nodes: Nodes) -> None:
    nodes.coordinate(3)
    for name in "abc":
        nodes.start(name)
    nodes.all_right(*"abc")
    assert nodes.facts()["store_bytes"] == str(len(nodes.content))
    text = nodes.stored.with_suffix(".blocks").read_text()
    assert image_blocks.parse(text, nodes.sha256).count == 97
    assert [path.suffix for path in nodes.store.iterdir()] in ([".sqsh", ".blocks"], [".blocks", ".sqsh"])


def test_a_node_with_the_image_sends_it_and_nobody_reads_the_store(nodes: Nodes) -> None:
    nodes.list_blocks()
    nodes.coordinate(1)
    nodes.start("a")
    nodes.all_right("a")
    nodes.coordinate(3)
    nodes.start("a")
    assert came(lambda: nodes.program("a"))
    nodes.stored.with_suffix(".sqsh").write_bytes(b"x" * len(nodes.content))
    # The store's file has other bytes now, so what the others get comes from the node.
    time.sleep(0.5)
    for name in "bc":
        nodes.start(name)
    nodes.all_right(*"abc")
    assert nodes.facts()["store_bytes"] == "0"


def test_a_wrong_block_names_its_sender_and_goes_no_further(nodes: Nodes) -> None:
    nodes.list_blocks()
    nodes.coordinate(3)
    nodes.start("a")
    assert came(nodes.image("a").exists), nodes.logs()
    with nodes.image("a").open("r+b") as stream:
        stream.seek(50 * 256 * 1024 + 7)
        stream.write(bytes([nodes.content[50 * 256 * 1024 + 7] ^ 1]))
    for name in "bc":
        nodes.start(name)
    for name in "bc":
        assert nodes.code(name) == 0, nodes.logs()
        assert nodes.image(name).read_bytes() == nodes.content
    assert "a sent a wrong block 50 to " in nodes.log("coordinator")
    assert nodes.code("a") == 1
    assert not nodes.image("a").exists(), "the damaged copy is removed"
    reason = (nodes.run / "state" / "stage" / "a.failed").read_text()
    assert "is damaged, and was removed" in reason


def test_a_killed_sender_continues_at_its_last_good_block(nodes: Nodes) -> None:
    nodes.list_blocks()
    nodes.coordinate(3)
    nodes.start("a")
    nodes.start("b")
    half = len(nodes.content) // 2
    assert came(
        lambda: (nodes.partial("a").exists() and nodes.partial("a").stat().st_size > half) or nodes.image("a").exists()
    )
    os.kill(nodes.program("a"), signal.SIGKILL)
    nodes.start("c")
    nodes.all_right(*"abc")
    assert "was killed (137); it is started again" in nodes.log("a")


def test_a_cut_node_keeps_its_good_blocks_and_no_more(nodes: Nodes) -> None:
    """A partial copy of an earlier start, with a damaged block: what is before it stays, what is behind it comes again."""
    nodes.list_blocks()
    nodes.coordinate(2)
    nodes.folder("a").mkdir(parents=True)
    nodes.folder("a").chmod(0o700)
    nodes.folder("a").parent.chmod(0o700)
    cut = bytearray(nodes.content[: 16 * MEBIBYTE])
    cut[10 * MEBIBYTE] ^= 1
    nodes.partial("a").write_bytes(cut)
    for name in "ab":
        nodes.start(name)
    nodes.all_right(*"ab")
    assert "continues behind 40 of 97 blocks" in nodes.log("a")
    assert int(nodes.facts()["store_bytes"]) <= len(nodes.content)


def test_a_list_that_is_not_the_images_is_made_again(nodes: Nodes) -> None:
    """Somebody wrote a list of other blocks into the store: the whole digest decides."""
    nodes.list_blocks()
    path = nodes.stored.with_suffix(".blocks")
    lines = path.read_text().splitlines()
    lines[50] = hashlib.sha256(b"other").hexdigest()
    path.write_text("\n".join([*lines, ""]))
    nodes.coordinate(3)
    for name in "abc":
        nodes.start(name)
    nodes.all_right(*"abc")
    assert "the list of blocks is made again" in nodes.log("coordinator")
    assert lines[50] not in path.read_text()


@pytest.mark.parametrize("what", ["link", "fifo", "zeros"])
def test_a_list_that_is_no_file_of_a_list_is_not_read(nodes: Nodes, what: str) -> None:
    """Another user of the store put it there: it would fill the memory of the job's first node, or hold it."""
    path = nodes.stored.with_suffix(".blocks")
    if what == "link":
        path.symlink_to("/dev/zero")
    elif what == "fifo":
        os.mkfifo(path)
    else:
        path.touch()
        os.truncate(path, 1 << 40)
    nodes.coordinate(2)
    for name in "ab":
        nodes.start(name)
    nodes.all_right(*"ab")


def test_a_damaged_image_in_the_store_reaches_no_node(nodes: Nodes) -> None:
    nodes.list_blocks()
    wrong = nodes.content[:5_000_000] + bytes([nodes.content[5_000_000] ^ 1]) + nodes.content[5_000_001:]
    nodes.stored.write_bytes(wrong)
    nodes.coordinate(3)
    for name in "abc":
        nodes.start(name)
    for name in "abc":
        assert nodes.code(name) == 1, nodes.logs()
        assert not nodes.image(name).exists()
        assert not nodes.partial(name).exists()
    found = hashlib.sha256(wrong).hexdigest()
    assert f"the copy has the digest {found}, the lock says {nodes.sha256}" in nodes.logs()


def test_strangers_are_turned_away_and_the_nodes_get_the_image(nodes: Nodes) -> None:
    """Another user of the node connects to both kinds of ports: silent, with noise, or with an echo of what it is sent."""
    nodes.list_blocks()
    nodes.coordinate(2)
    port = json.loads(nodes.meeting.read_text())["port"]
    assert nodes.meeting.stat().st_mode & 0o777 == 0o600
    nodes.start("a")
    assert came(nodes.image("a").exists), nodes.logs()
    listening = shell.run(["ss", "-Hltnp"], check=False).stdout
    own = [line.split()[3] for line in listening.splitlines() if f"pid={nodes.program('a')}," in line]
    assert len(own) == 1 and own[0].startswith("127.0.0.1:"), "one port, on the address of the node only"
    links = []
    for number in (port, int(own[0].rpartition(":")[2])):
        for said in (b"", b"\0" * 64, None):
            link = socket.create_connection(("127.0.0.1", number))
            link.settimeout(20)
            nonce = link.recv(64)
            assert len(nonce) == node_wire.NUMBER_BYTES
            link.sendall(nonce + nonce if said is None else said)
            links.append((link, said))
    for link, said in links:
        if said != b"":
            assert _ended(link), "a wrong proof ends the connection without a byte more"
    nodes.start("b")
    nodes.all_right("a", "b")
    assert "does not know the run's token" in nodes.log("coordinator")
    assert nodes.log("coordinator").count("turned a") == 2, "once for each of the two ports"


def _ended(link: socket.socket) -> bool:
    try:
        return link.recv(100) == b""
    except ConnectionResetError:
        return True


def test_a_program_that_only_listens_gets_nothing(nodes: Nodes) -> None:
    """Somebody else's program has the port that a node is sent to: it learns no token, and the node turns away from it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        server.settimeout(10)

        def answer() -> bytes:
            link, _ = server.accept()
            link.sendall(b"\1" * node_wire.NUMBER_BYTES)
            said: bytes = node_wire.read_exactly(link, node_wire.NUMBER_BYTES + node_wire.PROOF_BYTES)
            link.sendall(said[-node_wire.PROOF_BYTES :])
            return said

        token = os.urandom(32)
        with ThreadPoolExecutor() as pool:
            heard = pool.submit(answer)
            with pytest.raises(node_wire.StrangerError):
                node_wire.connect("127.0.0.1", port, token)
        assert token not in heard.result()


def test_a_full_disk_fails_on_its_node_only(nodes: Nodes) -> None:
    if os.geteuid() != 0:
        pytest.skip("a small file system takes root")
    nodes.list_blocks()
    nodes.folder("b").mkdir(parents=True, mode=0o700)
    shell.run(["mount", "-t", "tmpfs", "-o", "size=20M,mode=700", "tmpfs", str(nodes.folder("b"))])
    try:
        nodes.coordinate(3)
        for name in "abc":
            nodes.start(name)
        for name in "ac":
            assert nodes.code(name) == 0, nodes.logs()
            assert nodes.image(name).read_bytes() == nodes.content
        assert nodes.code("b") == 1
        assert not nodes.partial("b").exists()
        reason = (nodes.run / "state" / "stage" / "b.failed").read_text()
        assert "do not fit" in reason and "has 20 MB free" in reason
        assert "b: image not staged" in nodes.log("coordinator")
    finally:
        nodes.processes["b"].wait(timeout=60)
        shell.run(["umount", str(nodes.folder("b"))])


@pytest.mark.parametrize("python", ["missing", "old"])
def test_without_python_every_node_copies_from_the_store(nodes: Nodes, tmp_path: Path, python: str) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "python3").write_text("#!/bin/sh\nexit 1\n" if python == "old" else "#!/nowhere\n")
    (programs / "python3").chmod(0o755)
    nodes.coordinate(1)
    nodes.start("a", PATH=f"{programs}:{os.environ['PATH']}")
    assert nodes.code("a") == 0
    assert nodes.image("a").read_bytes() == nodes.content
    assert nodes.log("a").count("no python3 of 3.8 or newer on this node: it copies the image from the store") == 1


def test_without_a_coordinator_a_node_reads_the_store(nodes: Nodes) -> None:
    nodes.start("a")
    assert nodes.code("a") == 0, nodes.logs()
    assert nodes.image("a").read_bytes() == nodes.content
    assert "the coordinator does not answer" in nodes.log("a")


def test_nodes_finish_alone_when_the_coordinator_is_killed(nodes: Nodes) -> None:
    nodes.list_blocks()
    coordinator = nodes.coordinate(3)
    for name in "ab":
        nodes.start(name)
    assert came(lambda: nodes.partial("a").exists() or nodes.partial("b").exists())
    coordinator.kill()
    for name in "ab":
        assert nodes.code(name) == 0, nodes.logs()
        assert nodes.image(name).read_bytes() == nodes.content


def test_term_leaves_neither_a_process_nor_a_partial_copy(nodes: Nodes) -> None:
    """`kit cancel`: Slurm sends TERM to every process of the step. A partial copy stays after KILL only."""
    nodes.list_blocks()
    nodes.coordinate(3)
    nodes.start("a")
    assert came(lambda: nodes.image("a").exists())
    nodes.start("b")
    assert came(lambda: nodes.partial("b").exists() or nodes.image("b").exists())
    for name in "ab":
        os.killpg(nodes.processes[name].pid, signal.SIGTERM)
        assert nodes.processes[name].wait(timeout=30) != 0
        assert came(partial(nodes.ended, name), 10)
    assert not nodes.partial("b").exists()
    os.kill(nodes.processes["coordinator"].pid, signal.SIGTERM)
    assert nodes.processes["coordinator"].wait(timeout=30) == 0
    assert not nodes.meeting.exists()


def test_a_program_ends_with_its_stage_script(nodes: Nodes) -> None:
    nodes.list_blocks()
    nodes.coordinate(2)
    nodes.start("a")
    assert came(lambda: nodes.image("a").exists())
    program = nodes.program("a")
    nodes.processes["a"].kill()
    nodes.processes["a"].wait()
    assert came(lambda: not Path(f"/proc/{program}").exists(), 10)


# Who takes from whom, without a clock or a network.


def chain(*names: str, blocks: int = 1000) -> Any:
    made = image_chain.ImageChain(blocks)
    for name in names:
        made.join(name, 0, 0.0)
    return made


def test_each_takes_from_the_one_before_and_the_first_from_the_store() -> None:
    assert chain("a", "b", "c").sources() == {"a": image_chain.STORE, "b": "a", "c": "b"}


def test_who_has_more_is_before_who_has_less() -> None:
    made = chain("a", "b")
    made.join("c", 400, 1.0)
    made.join("d", 1000, 1.0)
    assert made.sources() == {"d": None, "c": "d", "a": "c", "b": "a"}


def test_a_node_that_is_gone_is_passed_by() -> None:
    made = chain("a", "b", "c")
    made.leave("b", 1.0)
    assert made.sources() == {"a": image_chain.STORE, "c": "a"}
    made.leave("a", 2.0)
    assert made.sources() == {"c": image_chain.STORE}


def test_who_sent_a_wrong_block_sends_no_more() -> None:
    made = chain("a", "b", "c")
    made.distrust("a", 1.0)
    assert made.sources() == {"b": image_chain.STORE, "c": "b", "a": "c"}
    made.join("d", 0, 2.0)
    assert made.sources()["d"] == "c", "a new node is before those that send nothing"


def test_when_nobody_is_trusted_all_read_the_store() -> None:
    made = chain("a", "b")
    made.distrust("a", 1.0)
    made.distrust("b", 1.0)
    assert set(made.sources().values()) == {image_chain.STORE}


def test_a_source_that_cannot_be_reached_twice_is_passed_by() -> None:
    made = chain("a", "b", "c")
    assert not made.lost("b", "a", 1.0), "the first time may be chance"
    assert made.lost("b", "a", 2.0)
    assert made.sources() == {"b": image_chain.STORE, "c": "b", "a": "c"}


def test_who_cannot_read_the_store_lets_another_read_it() -> None:
    made = chain("a", "b")
    assert made.lost("a", image_chain.STORE, 1.0)
    assert made.sources() == {"b": image_chain.STORE, "a": "b"}
    made.lost("b", image_chain.STORE, 2.0)
    assert set(made.sources().values()) == {None}


def test_a_slow_node_in_the_middle_is_passed_by() -> None:
    made = chain("a", "b", "c")
    for second in range(1, 6):
        made.progress("a", 100 * second, float(second))
        made.progress("b", 10 * second, float(second))
        made.progress("c", 10 * second, float(second))
    name, why = made.judge(5.0)
    assert name == "b"
    assert "it takes 10.0 blocks a second, and a, its source, 100.0" in why
    assert made.sources() == {"a": image_chain.STORE, "c": "a", "b": "c"}
    assert made.judge(5.5) is None


def test_when_all_become_slower_nobody_is_passed_by() -> None:
    """A busy machine, or a file server: rates of another time say nothing."""
    made = chain("a", "b", "c", "d", blocks=1700)
    done = 0
    for second in range(1, 41):
        done += 100 if second < 10 else 40
        for late, name in enumerate("abcd"):
            made.progress(name, max(0, done - 5 * late), float(second))
        assert made.judge(float(second)) is None
    assert made.sources() == {"a": image_chain.STORE, "b": "a", "c": "b", "d": "c"}


def test_a_source_at_which_two_are_slow_is_the_slow_one() -> None:
    made = chain("a", "b", "c", "d")
    for second in range(1, 6):
        for name in "abcd":
            made.progress(name, (100 if name == "a" else 10) * second, float(second))
    assert made.judge(5.0)[0] == "b"
    for second in range(6, 11):
        for name in "abcd":
            made.progress(name, (90 if name == "a" else 10) * second, float(second))
    assert made.sources() == {"a": image_chain.STORE, "c": "a", "d": "c", "b": "d"}
    assert made.judge(10.0) == ("a", "it sends slowly")
    assert made.sources() == {"c": image_chain.STORE, "d": "c", "b": "d", "a": "b"}


def test_another_node_tries_whether_it_reads_the_store_faster() -> None:
    made = chain("a", "b", "c")
    for second in range(1, 6):
        for name in "abc":
            made.progress(name, 10 * second, float(second))
    assert made.judge(5.0)[0] == "a"
    assert made.sources() == {"b": image_chain.STORE, "c": "b", "a": "c"}
    # The store is the slow one: nothing changes any more.
    for second in range(6, 30):
        for name in "abc":
            made.progress(name, 50 + 10 * (second - 5), float(second))
        assert made.judge(float(second)) is None
    assert made.sources()["b"] == image_chain.STORE


def test_another_source_is_tried_where_a_node_with_the_image_sends_slowly() -> None:
    made = chain("b", "c")
    made.join("a", 1000, 0.0)
    passed = []
    for second in range(1, 12):
        for name in "bc":
            made.progress(name, 10 * second, float(second))
        passed.append(made.judge(float(second)))
    assert [one[0] for one in passed if one] == ["b", "a"]
    assert made.sources() == {"c": image_chain.STORE, "b": "c", "a": None}


def test_the_reader_of_the_store_stops_before_a_node_with_a_part_joins(tmp_path: Path) -> None:
    """Its last report may be old: with it, the node with a part would read blocks that have been read already."""
    (tmp_path / "image").write_bytes(b"x" * 2_000_000)
    with (tmp_path / "image").open("rb") as stream:
        made = image_blocks.make(stream.fileno())
    orders = image_orders.Orders(2, made.sha256, "stored", lambda text: None, 0.0)
    orders.take_list(made.text(), 0.0)
    sent: list[tuple[str, dict[str, Any]]] = []

    def peer(name: str) -> Any:
        one = image_orders.Peer(name, name, 1, False, order=lambda **order: sent.append((name, order)), now=0.0)
        orders.arrive(one, 0.0)
        return one

    first, second = peer("a"), peer("b")
    orders.hear(first, {"begin": 0}, 0.1)
    orders.hear(first, {"have": 1, "store_bytes": 262_144}, 0.2)
    sent.clear()
    orders.hear(second, {"begin": 3}, 0.3)
    assert sent == [("a", {"pause": True})]
    orders.hear(first, {"have": 5, "store_bytes": 4 * 262_144, "paused": True}, 0.4)
    assert {name: order["source"] for name, order in sent[1:]} == {"a": image_chain.STORE, "b": "a"}
    # A node that is gone is not waited for.
    third = peer("c")
    orders.hear(third, {"begin": 2}, 0.5)
    orders.depart(first, 0.6)
    assert orders.chain.sources() == {"b": image_chain.STORE, "c": "b"}


def test_a_list_of_another_image_or_a_cut_one_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(b"x" * 600_000)
    with (tmp_path / "image").open("rb") as stream:
        made = image_blocks.make(stream.fileno())
    assert made.sha256 == hashlib.sha256(b"x" * 600_000).hexdigest()
    assert (made.count, made.length(2)) == (3, 600_000 - 2 * 262_144)
    assert image_blocks.parse(made.text(), made.sha256).digests == made.digests
    assert image_blocks.parse(made.text(), "0" * 64) is None
    assert image_blocks.parse(made.text()[:-10], made.sha256) is None
    assert image_blocks.parse("", made.sha256) is None


@pytest.mark.parametrize("size", [0, 1, 262_144, 262_145, 1_500_000])
def test_a_build_writes_the_list_that_a_node_would_make(tmp_path: Path, size: int) -> None:
    """Two programs that cannot share code."""
    image = tmp_path / "image"
    image.write_bytes(random.Random(size).randbytes(size))
    with image.open("rb") as stream:
        made = image_blocks.make(stream.fileno())
    assert block_list.text(image, made.sha256) == made.text()
    assert block_list.SUFFIX == image_blocks.SUFFIX
    assert (block_list._MOST_BLOCKS, block_list._LEAST_BYTES) == (image_blocks._MOST_BLOCKS, image_blocks._LEAST_BYTES)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What writes out a file of ten blocks, four at a time, and what it knew at each time: `synced`."""
    blocks = SimpleNamespace(block=MEBIBYTE, count=10)
    share = image_share.ImageShare("node", "0" * 64, meeting=None, file=-1, done=False)
    share.blocks, share.synced = blocks, []
    monkeypatch.setattr(image_taker, "_WRITTEN_OUT", 4 * MEBIBYTE)
    monkeypatch.setattr(image_taker.os, "fdatasync", lambda _: share.synced.append(share.have))
    share.thread = image_taker._WriteOut(share, blocks)
    yield share
    comes(share, blocks.count)
    share.thread.join()


def comes(share: Any, have: int) -> None:
    with share.changed:
        share.have = have
        share.changed.notify_all()


def test_the_disk_writes_while_blocks_come_in(written: Any) -> None:
    """A node with enough memory wrote all of the image at its end: with a slow disk, that took as long as the image's way."""
    for have, synced in ((3, []), (5, [5]), (6, [5]), (9, [5, 9])):
        comes(written, have)
        assert came(partial(lambda wanted: written.synced == wanted, synced))
    comes(written, 10)
    written.thread.result()
    assert written.synced == [5, 9], "the last part is written by the fsync of the whole"


def test_a_disk_that_fails_meanwhile_fails_the_node(written: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel tells the error once, so the fsync at the end would not get it."""

    def fails(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(image_taker.os, "fdatasync", fails)
    comes(written, 4)
    written.thread.join(60)
    comes(written, 10)
    with pytest.raises(OSError, match="Input/output error"):
        written.thread.result()


def test_a_list_that_is_made_again_ends_the_writing(written: Any) -> None:
    with written.changed:
        written.blocks = None
        written.changed.notify_all()
    written.thread.join(60)
    assert not written.thread.is_alive()
    assert written.synced == []
