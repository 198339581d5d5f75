"""Holds what the threads of a node share while it takes and sends an image, and talks to the coordinator.

Works with any Python from 3.8.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict, cast

import image_blocks
import node_wire

STORE = "the image store"
# Seconds between reports to the coordinator, and between checks of what changes without a message.
_REPORT_S, LOOK_S = 0.25, 0.5
_JOIN_TRIES = 3


class NodeOrder(TypedDict, total=False):
    """What the coordinator tells a node. One of list, source, make and pause, or some of check, fail and over.

    list: the text of the list of blocks. source: where to take from, the node at address and port, or the store. fail: the reason
    why no node can have the image.
    """

    list: str
    source: str | None
    address: str
    port: int
    make: bool
    pause: bool
    check: bool
    fail: str
    over: bool


class CoordinatorAddress:
    """Where the coordinator listens, and the run's token. place: the coordinator's file."""

    def __init__(self, place: str) -> None:
        said = json.loads(Path(place).read_text(encoding="utf-8"))
        self.address: str = said["address"]
        self.port: int = said["port"]
        self.token = bytes.fromhex(said["token"])


class FailedError(Exception):
    """This node cannot have the image. The text is the reason."""


class ImageShare:
    """All that changes, changes under `changed`.

    meeting: None where there is no coordinator. file: descriptor of the image here. have: its good blocks from the beginning.
    source: where the next comes from: STORE, the name of the node at `place`, or None. turn: grows with every order. done: the
    image is whole and at its place. pause: the coordinator waits until this node reads nothing. check: another node got a wrong
    block from here. make: list the blocks. over: all nodes have the image. alone: nobody coordinates. listed: the digests of the
    blocks, if this node listed them from its whole copy.
    """

    def __init__(self, name: str, sha256: str, meeting: CoordinatorAddress | None, file: int, done: bool) -> None:
        self.name, self.sha256, self.meeting, self.file, self.done = name, sha256, meeting, file, done
        self.changed = threading.Condition(threading.RLock())
        self.blocks: image_blocks.BlockList | None = None
        self.have = 0
        self.listed: list[str] | None = None
        self.source: str | None = None
        self.place, self.turn = ("", 0), 0
        self.pause = self.check = self.make = self.over = self.alone = False
        self.refused: str | None = None
        self.store_bytes, self.moved = 0, time.monotonic()
        self._control: socket.socket | None = None
        self._port = 0

    def join(self, listen: Callable[[str], int]) -> bool:
        """Say hello to the coordinator. listen: opens the port of this node, once its address is known. False without an answer."""
        problem = "its address is gone"
        meeting = self.meeting
        for attempt in range(_JOIN_TRIES):
            if meeting is None:
                break
            try:
                control = node_wire.connect(meeting.address, meeting.port, meeting.token)
                control.settimeout(None)
                with self.changed:
                    self._port = self._port or listen(control.getsockname()[0])
                    self._control, self.turn, self.source = control, self.turn + 1, None
                    self.moved = time.monotonic()
                    node_wire.say(control, node=self.name, port=self._port, done=self.done)
                return True
            except (OSError, node_wire.StrangerError) as error:
                problem = str(error)
                time.sleep(0.3 * (attempt + 1))
        say(f"the coordinator does not answer: {problem}")
        return False

    def follow(self, listen: Callable[[str], int]) -> None:
        """Obey the coordinator until it is gone; then this node continues alone. A thread of its own."""
        while not self.over:
            try:
                for order in node_wire.messages(self._control) if self._control is not None else ():
                    with self.changed:
                        # A key that is missing, or of another type, is reported below.
                        self._obey(cast(NodeOrder, order))
                        self.changed.notify_all()
            except OSError:
                # The connection broke. The coordinator may still be there.
                pass
            except (ValueError, KeyError) as error:
                say(f"an order of the coordinator is not understood: {error!r}")
            if self.over or not self.join(listen):
                break
        with self.changed:
            self.alone = True
            self.redirect(STORE)

    def report(self, parent: int) -> None:
        """Tell regularly how far this node is; end when stage.sh is gone. A thread of its own."""
        while True:
            time.sleep(_REPORT_S)
            if os.getppid() != parent:
                os._exit(1)
            self.tell_progress()

    def await_blocks(self, blocks: image_blocks.BlockList, wanted: int) -> bool:
        """Wait until so many blocks of this list are here. False when another list is used."""
        with self.changed:
            self.changed.wait_for(lambda: self.have >= wanted or self.blocks is not blocks)
            return self.blocks is blocks

    def tell_progress(self, **message: object) -> None:
        """Report how far this node is, and what it has read from the store since the last report."""
        with self.changed:
            read, self.store_bytes = self.store_bytes, 0
            self.tell(have=self.have, store_bytes=read, **message)

    def tell(self, **message: object) -> None:
        """Send the coordinator a report. When it is gone, `follow` notices."""
        try:
            with self.changed:
                if self._control is not None and not self.alone:
                    node_wire.say(self._control, **message)
        except OSError:
            return

    def redirect(self, source: str | None, place: tuple[str, int] = ("", 0)) -> None:
        """Take from another source from now on; None: wait for an order."""
        with self.changed:
            self.source, self.place, self.turn = source, place, self.turn + 1
            self.changed.notify_all()

    def _obey(self, order: NodeOrder) -> None:
        if "list" in order:
            self._take_list(image_blocks.parse(order["list"], self.sha256))
        elif "source" in order:
            self.redirect(order["source"], (order["address"], order["port"]))
        elif "make" in order:
            self.make, self.blocks = True, None
            self.redirect(None)
        elif "pause" in order:
            self.pause = True
            self.redirect(None)
        self.check = self.check or "check" in order
        self.refused = order.get("fail", self.refused)
        self.over = self.over or "over" in order

    def _take_list(self, blocks: image_blocks.BlockList | None) -> None:
        """The list that all nodes use. After a broken connection it is the one that is here already."""
        if blocks is None:
            raise ValueError("the list of blocks is not one of this image")
        known = self.blocks is not None and self.blocks.digests == blocks.digests
        if not known:
            self.blocks = blocks
            self.have = blocks.count if self.done or blocks.digests == self.listed else 0
            self.redirect(None)
        if known or self.done:
            self.tell(begin=self.have, done=self.done)


def say(text: str) -> None:
    """Write a line in the form of lib/log.sh."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    print(f"{stamp} {node}: {text}", file=sys.stderr, flush=True)
