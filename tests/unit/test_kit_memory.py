"""kit_memory: generations of a state in memory, copies on a neighbour, and the step that all ranks agree on. A rank is a thread."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support import REPO

MODULES = ("kit_memory", "kit_memory_files", "kit_memory_state", "kit_memory_transfer")


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """templates/kit_node can be imported, as in a rank."""
    monkeypatch.syspath_prepend(str(REPO / "templates" / "kit_node"))
    for name in ("KIT_RUN_DIR", "SLURM_JOB_ID", "MASTER_ADDR", "SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU"):
        monkeypatch.delenv(name, raising=False)
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


def module(name: str) -> Any:
    return importlib.import_module(name)


class Ranks:
    """One start of the ranks of some nodes, `each` on every node. folder: holds the memory of each node."""

    def __init__(self, folder: Path, nodes: list[str], each: int = 2) -> None:
        self.folder, self.nodes, self.each = folder, nodes, each
        self.size = len(nodes) * each
        self._barrier = threading.Barrier(self.size, timeout=60)
        self._values: list[Any] = [None] * self.size
        for node in nodes:
            (folder / node).mkdir(mode=0o700, exist_ok=True)

    def gather(self, rank: int) -> Callable[[Any], list[Any]]:
        def gathered(value: Any) -> list[Any]:
            # As torch's: a value is pickled on its way, so that no rank holds an object of another.
            self._values[rank] = json.dumps(value)
            self._barrier.wait()
            found = [json.loads(text) for text in self._values]
            self._barrier.wait()
            return found

        return gathered

    def run(self, do: Callable[[Any, int], Any]) -> list[Any]:
        """Call `do` with each rank's memory and number, at once. Returns what they return."""

        def one(rank: int) -> Any:
            node = self.nodes[rank // self.each]
            memory = module("kit_memory").Memory(
                5, gather=self.gather(rank), path=str(self.folder / node), node=node, rank=rank
            )
            try:
                return do(memory, rank)
            finally:
                memory.wait()
                self._barrier.wait()  # the others may still send
                memory.close()

        with ThreadPoolExecutor(self.size) as pool:
            return [future.result(timeout=120) for future in [pool.submit(one, rank) for rank in range(self.size)]]


def state(rank: int, step: int) -> dict[str, Any]:
    return {"rank": rank, "step": step, "bytes": bytes([rank, step % 256]) * 100_000}


def saved(*steps: int) -> Callable[[Any, int], None]:
    def save(memory: Any, rank: int) -> None:
        for step in steps:
            assert memory.due(step)
            memory.save(step, state(rank, step), {"whole": step})

    return save


def loaded(memory: Any, _: int) -> Any:
    found = memory.load()
    return found and (found.step, found.state, found.shared, found.fetched)


def steps(folder: Path, node: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = module("kit_memory_files").MemoryFiles(str(folder / node)).steps()
    return found


def expected(step: int, ranks: int, *, fetched: bool = False) -> list[Any]:
    return [(step, state(rank, step), {"whole": step}, fetched) for rank in range(ranks)]


NODES = ["n1", "n2", "n3"]


def test_ranks_continue_from_the_newest_step_and_two_steps_stay(tmp_path: Path) -> None:
    assert Ranks(tmp_path, NODES).run(loaded) == [None] * 6
    Ranks(tmp_path, NODES).run(saved(5, 10, 15))
    assert steps(tmp_path, "n2") == {
        "shared": [10, 15],
        **{f"rank-{rank}": [10, 15] for rank in (0, 1, 2, 3)},  # its own ranks', and copies of those of n1
    }
    assert Ranks(tmp_path, NODES).run(loaded) == expected(15, 6)


def test_a_lost_node_is_replaced_and_gets_its_parts_from_the_others(tmp_path: Path) -> None:
    """A spare comes in: every rank of it has its own state, and the shared one, without any from before."""
    Ranks(tmp_path, NODES).run(saved(5, 10))
    shutil.rmtree(tmp_path / "n2")
    nodes = ["n1", "n3", "n4"]
    assert Ranks(tmp_path, nodes).run(loaded) == expected(10, 6, fetched=True)
    # The copies are where they now belong, also for a second loss before the next save.
    for lost in ("n4", "n1"):
        shutil.rmtree(tmp_path / lost)
        assert Ranks(tmp_path, nodes).run(loaded) == expected(10, 6, fetched=True), lost
    # n3 ran ranks 4 and 5, and now runs 2 and 3: it keeps these, and the copies of n1's.
    assert set(steps(tmp_path, "n3")) == {"shared", "rank-0", "rank-1", "rank-2", "rank-3"}


def test_two_nodes_lost_at_once_leave_nothing_to_agree_on(tmp_path: Path) -> None:
    """n2 has lost its own, and n3 the copies of them."""
    Ranks(tmp_path, NODES).run(saved(5, 10))
    for lost in ("n2", "n3"):
        shutil.rmtree(tmp_path / lost)
    assert Ranks(tmp_path, NODES).run(loaded) == [None] * 6
    assert steps(tmp_path, "n1") == {}, "a program that starts anew must never meet steps of another past"


def test_a_death_before_all_have_saved_costs_one_save_more(tmp_path: Path) -> None:
    """Rank 3 has not saved step 15: all continue from 10, and 15 is forgotten."""
    Ranks(tmp_path, NODES).run(saved(5, 10, 15))
    for node in ("n2", "n3"):
        (tmp_path / node / "rank-3@15").unlink()
    assert Ranks(tmp_path, NODES).run(loaded) == expected(10, 6)
    assert {step for node in NODES for of in steps(tmp_path, node).values() for step in of} == {10}


@pytest.mark.parametrize("how", ["flipped", "cut", "empty"])
def test_a_damaged_part_is_taken_from_the_neighbour(
    tmp_path: Path, how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    Ranks(tmp_path, NODES).run(saved(5, 10))
    damage(tmp_path / "n1" / "rank-1@10", how)
    assert Ranks(tmp_path, NODES).run(loaded) == expected(10, 6, fetched=True)
    assert Ranks(tmp_path, NODES).run(loaded) == expected(10, 6), "it is whole again"
    assert "is not used" not in capfd.readouterr().err


@pytest.mark.parametrize("part", ["rank-1", "shared"])
def test_a_step_that_is_damaged_on_all_nodes_falls_back_to_the_one_before(
    tmp_path: Path, part: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """All ranks give it up together, and one of them tells the reason."""
    Ranks(tmp_path, NODES).run(saved(5, 10))
    for path in tmp_path.glob(f"n?/{part}@10"):
        damage(path, "flipped")
    assert Ranks(tmp_path, NODES).run(loaded) == expected(5, 6)
    assert (
        capfd.readouterr().err.count(f"step 10 in memory is not used: rank {int(part == 'rank-1')}: {part} of step 10")
        == 1
    )


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(
        bytes(content) if how == "flipped" else bytes(content[: len(content) // 2]) if how == "cut" else b""
    )


def test_a_draft_of_a_killed_rank_is_no_step_and_its_memory_is_used_again(tmp_path: Path) -> None:
    Ranks(tmp_path, NODES).run(saved(5, 10))
    files = module("kit_memory_files").MemoryFiles(str(tmp_path / "n1"))
    files.write("rank-0", 300_000).payload[:5] = b"never"  # killed here: step 5 is given up, 15 never committed
    assert files.steps()["rank-0"] == [10]
    inode = (tmp_path / "n1" / "rank-0@writing").stat().st_ino
    assert Ranks(tmp_path, NODES).run(loaded) == expected(10, 6)
    Ranks(tmp_path, NODES).run(saved(15))
    assert (tmp_path / "n1" / "rank-0@15").stat().st_ino == inode
    assert not [*tmp_path.glob("*/*@writing")]


def test_saves_reuse_their_memory(tmp_path: Path) -> None:
    """The third save and all later ones allocate nothing."""
    seen: list[set[int]] = []

    def save(memory: Any, rank: int) -> None:
        for step in range(5, 45, 5):
            memory.save(step, state(rank, step), {"whole": step})
            memory.wait()
            if rank == 0:
                seen.append({path.stat().st_ino for path in (tmp_path / "n1").glob("rank-0@*")})

    Ranks(tmp_path, NODES).run(save)
    assert len(set.union(*seen)) == 2


def test_without_memory_on_a_node_it_is_off_for_all_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    (run_dir / "state").mkdir(parents=True)
    monkeypatch.setenv("KIT_RUN_DIR", str(run_dir))
    files = module("kit_memory_files").MemoryFiles
    monkeypatch.setattr(files, "free", lambda self: 1 << 40 if "n2" not in self._path else 1_000_000)

    def save(memory: Any, rank: int) -> bool:
        memory.save(5, state(rank, 5), {"whole": 5})
        return bool(memory.due(10))

    assert Ranks(tmp_path, NODES).run(save) == [False] * 6
    # Two steps of four parts of 200 kB, and of the shared one.
    said = capfd.readouterr().err
    assert said.count("warning") == 1
    assert "checkpoints in memory are off: they need 0.00 GB on n2, and 0.00 GB are free there" in said
    (event,) = map(json.loads, (run_dir / "state" / "events.jsonl").read_text().splitlines())
    assert event["event"] == "memory-off"
    assert not [*tmp_path.glob("n?/*")]


class Trap:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def foreign_owner(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder seems to belong to another user."""
    real = os.lstat

    def lstat(of: Any, **how: Any) -> os.stat_result:
        found = real(of, **how)
        return os.stat_result((*found[:4], 4242, *found[5:10])) if str(of) == str(path) else found

    monkeypatch.setattr("os.lstat", lstat)


@pytest.mark.parametrize("squat", ["owner", "link", "group"])
def test_c11_a_foreign_folder_on_one_node_turns_it_off_for_all_and_nothing_of_it_is_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], squat: str
) -> None:
    """Another user of node n2 made the folder first, with a part of each rank: no rank hangs, and none takes or leaves a state."""
    run_dir = tmp_path / "run"
    (run_dir / "state").mkdir(parents=True)
    monkeypatch.setenv("KIT_RUN_DIR", str(run_dir))
    folder = tmp_path / "n2"
    folder.mkdir(mode=0o700)
    files = module("kit_memory_files").MemoryFiles(str(folder))
    for rank in range(6):
        layout = module("kit_memory_state").StateLayout(Trap(tmp_path / "ran"))
        draft = files.write(f"rank-{rank}", layout.size)
        layout.write(draft.payload)
        draft.commit(999_999_999)
    before = sorted(folder.iterdir())
    if squat == "owner":
        foreign_owner(folder, monkeypatch)
    elif squat == "link":
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to("elsewhere")
    else:
        folder.chmod(0o770)

    def use(memory: Any, rank: int) -> Any:
        found = memory.newest(), memory.load(), memory.due(5)
        memory.save(5, state(rank, 5), {"whole": 5})
        return found

    assert Ranks(tmp_path, NODES).run(use) == [(None, None, False)] * 6
    assert not (tmp_path / "ran").exists()
    assert (sorted(folder.iterdir()), [*tmp_path.glob("n[13]/*")]) == (before, [])
    said = capfd.readouterr().err
    assert said.count("checkpoints in memory are off") == 1
    owner = 4242 if squat == "owner" else os.geteuid()
    assert f"{folder} " in said
    assert f"uid {owner}" in said
    (event,) = map(json.loads, (run_dir / "state" / "events.jsonl").read_text().splitlines())
    assert event["event"] == "memory-off"
    assert str(folder) in event["why"]


def test_c11_a_folder_that_is_foreign_only_at_the_first_save_gets_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """There was none when the ranks began: its step was slow, and somebody else was faster."""
    node = tmp_path / "late"
    memory = module("kit_memory").Memory(5, path=str(node), gather=lambda value: [value], rank=0)
    (tmp_path / "theirs").mkdir()
    node.symlink_to("theirs")
    memory.save(5, {"a": 1})
    memory.close()
    assert not memory.due(10)
    assert f"{node} " in capfd.readouterr().err
    assert not [*node.iterdir()]


def test_the_memory_that_slurm_granted_is_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "1")
    Ranks(tmp_path, NODES).run(lambda memory, rank: memory.save(5, state(rank, 5)))
    assert not [*tmp_path.glob("n?/*")]


def test_one_node_has_no_neighbour(tmp_path: Path) -> None:
    Ranks(tmp_path, ["n1"]).run(saved(5, 10))
    assert Ranks(tmp_path, ["n1"]).run(loaded) == expected(10, 2)


def test_what_is_saved_later_than_the_file_counts(tmp_path: Path) -> None:
    """A file checkpoint of step 12 is newer than memory's 10, and that of step 10 is not."""
    Ranks(tmp_path, NODES).run(saved(5, 10))
    assert Ranks(tmp_path, NODES).run(lambda memory, _: memory.newest()) == [10] * 6
    found = Ranks(tmp_path, NODES).run(lambda memory, _: memory.load(at_least=10))
    assert {one.step for one in found} == {10}
    assert Ranks(tmp_path, NODES).run(lambda memory, _: memory.load(at_least=12)) == [None] * 6


def test_without_the_key_or_a_job_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = module("kit_memory").Memory()
    assert (memory.due(5), memory.load(), memory.newest()) == (False, None, None)
    memory.save(5, {"a": 1})
    memory.close()
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert not module("kit_memory").Memory().due(5)
    # The folder is not there: its step could not start. Training continues.
    alone = module("kit_memory").Memory(5, path=str(tmp_path / "none"), gather=lambda value: [value])
    alone.save(5, {"a": 1})
    assert not alone.due(10)
    alone.close()


class Serving:
    """A node's files, behind a server."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.transfer = module("kit_memory_transfer")
        self.files = module("kit_memory_files").MemoryFiles(str(folder))
        self.server = self.transfer.PartServer(self.files, b"token", "127.0.0.1")


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    made = Serving(tmp_path / "served")
    yield made
    made.server.close()


def test_a_part_is_stored_and_fetched_with_the_token_alone(tmp_path: Path, serving: Serving) -> None:
    payload = memoryview(os.urandom(9_000_000))
    serving.transfer.store(serving.server.address, b"token", "rank-0", 5, payload)
    (tmp_path / "own").mkdir()
    files = module("kit_memory_files").MemoryFiles(str(tmp_path / "own"))
    serving.transfer.fetch(serving.server.address, b"token", "rank-0", 5, files)
    assert files.read_part("rank-0", 5) == payload
    with pytest.raises(OSError, match=r"token|ended|reset"):
        serving.transfer.store(serving.server.address, b"other", "rank-0", 6, payload)
    with pytest.raises(OSError, match=r"token|ended|reset"):
        serving.transfer.fetch(serving.server.address, b"other", "rank-0", 5, files)
    assert serving.files.steps() == {"rank-0": [5]}


@pytest.mark.parametrize("sent", [0, 1, 4_000_000])
def test_a_copy_that_is_cut_is_no_step(serving: Serving, sent: int) -> None:
    """The sender is killed in the middle: the step before it stays."""
    payload = memoryview(os.urandom(5_000_000))
    serving.transfer.store(serving.server.address, b"token", "rank-0", 5, payload)
    connection = socket.create_connection(serving.server.address)
    with serving.transfer.Channel(connection, b"token", serves=False) as channel:
        channel.tell(do="store", part="rank-0", step=10, size=len(payload))
        channel.hear()
        connection.sendall(payload[:sent])
    serving.transfer.store(serving.server.address, b"token", "rank-0", 15, payload)
    assert serving.files.steps() == {"rank-0": [5, 15]}


def test_bytes_that_changed_on_their_way_are_no_step(serving: Serving) -> None:
    payload = memoryview(os.urandom(5_000_000))
    connection = socket.create_connection(serving.server.address)
    with serving.transfer.Channel(connection, b"token", serves=False) as channel:
        channel.tell(do="store", part="rank-0", step=10, size=len(payload))
        channel.hear()
        connection.sendall(bytes(payload[:-1]) + bytes([payload[-1] ^ 1]))
        channel.tell(sha256=module("kit_memory_files").sha256(payload).hex())
        with pytest.raises(OSError, match=r"ended|reset"):
            channel.hear()
    assert serving.files.steps() == {}


def test_a_past_that_was_given_up_stores_nothing_more(tmp_path: Path, serving: Serving) -> None:
    """The program starts again in the same process: a copy that is on its way then never becomes a step."""
    payload = memoryview(os.urandom(5_000_000))
    connection = socket.create_connection(serving.server.address)
    with serving.transfer.Channel(connection, b"token", serves=False) as channel:
        channel.tell(do="store", part="rank-0", step=10, size=len(payload))
        channel.hear()
        serving.server.close()
        with pytest.raises(OSError, match=r"ended|reset|[Bb]roken"):
            channel.send(payload)
            channel.hear()
    assert serving.files.steps() == {}
    memory = module("kit_memory").Memory
    first = memory(5, gather=lambda value: [value], path=str(tmp_path), node="n1", rank=0)
    second = memory(5, gather=lambda value: [value], path=str(tmp_path), node="n1", rank=0)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(first._server.address)
    second.close()


def test_a_message_cannot_be_sent_again(serving: Serving) -> None:
    """What was recorded on one connection is refused on the next: its key is another one."""
    recorded: list[bytes] = []

    class Recording(socket.socket):
        def sendall(self, data: Any, *flags: int) -> None:
            recorded.append(bytes(data))
            super().sendall(data, *flags)

    with Recording(socket.AF_INET, socket.SOCK_STREAM) as one:
        one.connect(serving.server.address)
        channel = serving.transfer.Channel(one, b"token", serves=False)
        channel.tell(do="store", part="rank-0", step=10, size=3)
        channel.hear()
    with socket.create_connection(serving.server.address) as again:
        for data in recorded:
            again.sendall(data)
        again.settimeout(30)
        answer = b""
        # What the server has not read when it closes, makes a reset of the close.
        with contextlib.suppress(ConnectionResetError):
            while more := again.recv(1 << 16):
                answer += more
    assert len(answer) == 32, "its number, and nothing more"


def test_arrays_and_plain_values_keep_type_and_value() -> None:
    layout_of, read_state = module("kit_memory_state").StateLayout, module("kit_memory_state").read_state
    import array
    import pickle

    given: dict[str | int, object] = {
        "text": "ä",
        3: [1.5, None, (True, b"x")],
        "array": array.array("d", [1, 2]),
        "big": bytearray(b"ab") * 1000,
    }
    given["out of band"] = pickle.PickleBuffer(bytearray(b"xyz"))
    layout = layout_of(given)
    memory = memoryview(bytearray(layout.size))
    layout.write(memory)
    found = read_state(memory)
    assert bytes(found.pop("out of band")) == b"xyz"
    del given["out of band"]
    assert found == given
    memory[:] = bytes(len(memory))
    assert found == given, "it refers to nothing of the memory"
