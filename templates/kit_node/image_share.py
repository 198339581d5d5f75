"""Holds what the threads of a node share while it takes and sends an image, and talks to the coordinator.

Works with any Python from 3.8.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

import image_blocks
import node_wire

STORE = "the image store"
# Seconds between reports to the coordinator, and between checks of what changes without a message.
_REPORT_S, LOOK_S = 0.25, 0.5
_JOIN_TRIES = 3


class Meeting:
    """Where the coordinator listens, and the run's token. place: the coordinator's file."""

    def __init__(self, place):
        said = json.loads(Path(place).read_text(encoding="utf-8"))
        self.address, self.port, self.token = said["address"], said["port"], bytes.fromhex(said["token"])


class FailedError(Exception):
    """This node cannot have the image. The text is the reason."""


class Share:
    """All that changes, changes under `changed`.

    meeting: None where there is no coordinator. file: descriptor of the image here. have: its good blocks from the beginning.
    source: where the next comes from: STORE, the name of the node at `place`, or None. turn: grows with every order. done: the
    image is whole and at its place. pause: the coordinator waits until this node reads nothing. check: another node got a wrong
    block from here. make: list the blocks. over: all nodes have the image. alone: nobody coordinates. listed: the digests of the
    blocks, if this node listed them from its whole copy.
    """

    def __init__(self, name, sha256, meeting, file, done):
        self.name, self.sha256, self.meeting, self.file, self.done = name, sha256, meeting, file, done
        self.changed = threading.Condition(threading.RLock())
        self.blocks, self.have, self.listed = None, 0, None
        self.source, self.place, self.turn = None, ("", 0), 0
        self.pause = self.check = self.make = self.over = self.alone = False
        self.refused = None
        self.store_bytes, self.moved = 0, time.monotonic()
        self._control, self._port = None, 0

    def join(self, listen):
        """Say hello to the coordinator. listen: opens the port of this node, once its address is known. False without an answer."""
        problem = "its address is gone"
        for attempt in range(_JOIN_TRIES if self.meeting is not None else 0):
            try:
                control = node_wire.connect(self.meeting.address, self.meeting.port, self.meeting.token)
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

    def follow(self, listen):
        """Obey the coordinator until it is gone; then this node continues alone. A thread of its own."""
        while not self.over:
            try:
                for order in node_wire.messages(self._control):
                    with self.changed:
                        self._obey(order)
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

    def report(self, parent):
        """Tell regularly how far this node is; end when stage.sh is gone. A thread of its own."""
        while True:
            time.sleep(_REPORT_S)
            if os.getppid() != parent:
                os._exit(1)
            self.tell_progress()

    def await_blocks(self, blocks, wanted):
        """Wait until so many blocks of this list are here. False when another list is used."""
        with self.changed:
            self.changed.wait_for(lambda: self.have >= wanted or self.blocks is not blocks)
            return self.blocks is blocks

    def tell_progress(self, **message):
        """Report how far this node is, and what it has read from the store since the last report."""
        with self.changed:
            read, self.store_bytes = self.store_bytes, 0
            self.tell(have=self.have, store_bytes=read, **message)

    def tell(self, **message):
        """Send the coordinator a report. When it is gone, `follow` notices."""
        try:
            with self.changed:
                if self._control is not None and not self.alone:
                    node_wire.say(self._control, **message)
        except OSError:
            return

    def redirect(self, source, place=("", 0)):
        """Take from another source from now on; None: wait for an order."""
        with self.changed:
            self.source, self.place, self.turn = source, place, self.turn + 1
            self.changed.notify_all()

    def _obey(self, order):
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

    def _take_list(self, blocks):
        """The list that all nodes use. After a broken connection it is the one that is here already."""
        known = self.blocks is not None and self.blocks.digests == blocks.digests
        if not known:
            self.blocks = blocks
            self.have = blocks.count if self.done or blocks.digests == self.listed else 0
            self.redirect(None)
        if known or self.done:
            self.tell(begin=self.have, done=self.done)


def say(text):
    """Write a line in the form of lib/log.sh."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    print(f"{stamp} {node}: {text}", file=sys.stderr, flush=True)
