"""image_share: orders of the coordinator, as a node takes them from a connection."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import image_blocks
import node_wire
import pytest
from image_share import STORE, CoordinatorAddress, ImageShare

TOKEN = b"k" * 32
CONTENT = b"image" * 1000


class Coordinator:
    """Admits a node as often as it comes, and sends it what the test says."""

    def __init__(self) -> None:
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(5)
        self._listener.settimeout(30)
        self.port: int = self._listener.getsockname()[1]
        self.link: socket.socket | None = None

    def admit(self) -> dict[str, object]:
        """Let the node in. Returns what it says first."""
        self.link, _ = self._listener.accept()
        node_wire.admit(self.link, TOKEN, 20.0)
        self.link.settimeout(30)
        return next(node_wire.messages(self.link))

    def say(self, **order: object) -> None:
        assert self.link is not None
        node_wire.say(self.link, **order)

    def close(self) -> None:
        for one in (self.link, self._listener):
            if one is not None:
                one.close()


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    made = Coordinator()
    yield made
    made.close()


def joined(coordinator: Coordinator, tmp_path: Path) -> tuple[ImageShare, threading.Thread]:
    """A node that has joined, and the thread in which it follows orders."""
    meeting, image = tmp_path / "meeting", tmp_path / "image"
    meeting.write_text(json.dumps({"address": "127.0.0.1", "port": coordinator.port, "token": TOKEN.hex()}))
    image.write_bytes(CONTENT)
    file = image.open("rb")
    share = ImageShare(
        "n1", hashlib.sha256(CONTENT).hexdigest(), CoordinatorAddress(str(meeting)), file.fileno(), done=False
    )
    said: list[dict[str, object]] = []
    admits = threading.Thread(target=lambda: said.append(coordinator.admit()))
    admits.start()
    assert share.join(lambda address: 4321 if address == "127.0.0.1" else 0)
    admits.join()
    assert said == [{"node": "n1", "port": 4321, "done": False}]
    thread = threading.Thread(target=share.follow, args=(lambda _: 4321,), daemon=True)
    thread.start()
    # The file lives as long as the share, which has only its number.
    thread.file = file  # type: ignore[attr-defined]
    return share, thread


def blocks_of(share: ImageShare) -> image_blocks.BlockList:
    return image_blocks.make(share.file)


def until(share: ImageShare, condition: object) -> bool:
    with share.changed:
        return share.changed.wait_for(condition, 30)  # type: ignore[arg-type]


def test_a_node_obeys_the_coordinator_until_it_is_over(coordinator: Coordinator, tmp_path: Path) -> None:
    share, thread = joined(coordinator, tmp_path)
    coordinator.say(list=blocks_of(share).text())
    assert until(share, lambda: share.blocks is not None)
    turn = share.turn
    coordinator.say(source="n2", address="10.0.0.2", port=99)
    assert until(share, lambda: share.source == "n2")
    assert (share.place, share.turn) == (("10.0.0.2", 99), turn + 1)
    coordinator.say(check=True)
    coordinator.say(fail="no node can read it")
    assert until(share, lambda: share.refused is not None)
    assert (share.check, share.refused) == (True, "no node can read it")
    coordinator.say(over=True)
    assert until(share, lambda: share.over)
    coordinator.close()
    thread.join(60)
    assert not thread.is_alive()


def test_a_list_that_is_not_one_of_the_image_ends_no_thread(
    coordinator: Coordinator, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The thread that follows orders ended with an AttributeError, and the node waited for orders that nobody read."""
    share, thread = joined(coordinator, tmp_path)
    coordinator.say(list="kit-blocks-1 of another image\n")
    assert coordinator.admit()["node"] == "n1"
    coordinator.say(list=blocks_of(share).text())
    assert until(share, lambda: share.blocks is not None)
    assert "an order of the coordinator is not understood" in capfd.readouterr().err
    coordinator.say(over=True)
    assert until(share, lambda: share.over)
    coordinator.close()
    thread.join(60)
    assert not thread.is_alive()


def test_a_node_whose_coordinator_is_gone_reads_the_store_alone(coordinator: Coordinator, tmp_path: Path) -> None:
    share, thread = joined(coordinator, tmp_path)
    coordinator.close()
    thread.join(60)
    assert (share.alone, share.source) == (True, STORE)
