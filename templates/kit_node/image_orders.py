"""Gives orders to the nodes that pass an image on: which list of blocks holds, and where each node takes its blocks.

image_coordinator.py hands over what the nodes report, and sends the orders. Works with any Python from 3.8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypedDict

import image_blocks
from image_chain import STORE, ImageChain
from image_share import say

# Seconds without a report after which a node counts as gone, and in which a node may still come when the others have the image.
_SILENT_S, _ABSENT_S = 8.0, 30.0
# Seconds in which the reader of the store must have stopped, so that others can join before it.
_PAUSE_S = 2.0


class NodeReport(TypedDict, total=False):
    """What a node tells. have: its good blocks from the beginning. store_bytes: read from the store since its last report.

    begin: it has the list, and so many good blocks. made: the text of the list that it has made. bad: the number of a wrong block
    that `source` sent. lost: the source that it cannot take from, and why. bad_list: why it doubts the list whose last digest is
    `of`. stranger: why it turned a connection away.
    """

    have: int
    store_bytes: int
    done: bool
    paused: bool
    begin: int
    made: str
    bad: int
    source: str
    lost: str
    why: str
    bad_list: str
    of: str
    stranger: str


class SendOrder(Protocol):
    """Sends a node an order: the keys of image_share.NodeOrder, or `bye`, which ends its connection."""

    def __call__(self, **message: object) -> None:
        """Send it. A node that is gone gets nothing."""


class Peer:
    """A node's connection. order: sends it a message. done: it has the whole image."""

    def __init__(self, name: str, address: str, port: int, done: bool, *, order: SendOrder, now: float) -> None:
        self.name, self.address, self.port, self.done = name, address, port, done
        self.order, self.seen = order, now
        # The last order of a source: its name, address and port.
        self.ordered: tuple[str | None, str, int] | None = None


class Orders:
    """All nodes of one start of a run.

    expected: their number. keep: writes a new list of blocks beside the image in the store.
    """

    def __init__(self, expected: int, sha256: str, stored: str, keep: Callable[[str], None], now: float) -> None:
        self.expected, self.sha256, self.stored, self.keep = expected, sha256, stored, keep
        self.peers: dict[str, Peer] = {}
        self.done: set[str] = set()
        self.failed: dict[str, str] = {}
        self.store_bytes, self.began, self.changed = 0, now, now
        self.chain: ImageChain | None = None
        self._blocks: image_blocks.BlockList | None = None
        self._made = False
        self._maker: str | None = None
        # Nodes that join when the reader of the store has stopped, and their good blocks; that reader, and since when it is asked.
        self._joining: dict[str, int] = {}
        self._paused: str | None = None
        self._paused_at = now

    # What the nodes do

    def arrive(self, peer: Peer, now: float) -> None:
        """A node that begins, or begins again after its program was killed."""
        self.peers[peer.name] = peer
        self.done.discard(peer.name)
        self.failed.pop(peer.name, None)
        self.changed = now
        if self._blocks is not None:
            peer.order(list=self._blocks.text())
        else:
            self._choose_maker()

    def depart(self, peer: Peer, now: float) -> None:
        """The end of a node's connection."""
        if self.peers.get(peer.name) is not peer:
            return
        del self.peers[peer.name]
        self.changed = now
        if peer.name not in self.done and peer.name not in self.failed:
            say(f"{peer.name} is gone; the others continue without it")
        if self._maker == peer.name:
            self._maker = None
            self._choose_maker()
        self._take_out(peer.name, now)

    def fail(self, name: str, why: str, now: float) -> None:
        """A node that cannot have the image."""
        self.failed[name] = why
        self.changed = now
        say(f"error: {name}: image not staged: {why}")
        self._take_out(name, now)

    def hear(self, peer: Peer, report: NodeReport, now: float) -> None:
        """A report of a node."""
        peer.seen = now
        self.store_bytes += report.get("store_bytes", 0)
        if "have" in report and self.chain is not None:
            self.chain.progress(peer.name, report["have"], now)
        if report.get("done"):
            self.done.add(peer.name)
            peer.done, self.changed = True, now
        if peer.name == self._paused and self.chain is not None and not {"paused", "done"}.isdisjoint(report):
            self._join_waiting(self.chain, now)
        if "made" in report and self._maker == peer.name:
            self.take_list(report["made"], now, maker=peer.name)
        elif "stranger" in report:
            say(f"{peer.name} turned a connection away: {report['stranger']}")
        elif "bad_list" in report:
            self._doubt_list(report["bad_list"], report["of"])
        elif self.chain is not None and not {"begin", "bad", "lost"}.isdisjoint(report):
            self._relink(self.chain, peer, report, now)

    def _relink(self, chain: ImageChain, peer: Peer, report: NodeReport, now: float) -> None:
        """A node that begins, or whose source is of no use."""
        if "begin" in report:
            if self._waits_for_reader(chain, peer, report["begin"], now):
                return
            chain.join(peer.name, report["begin"], now)
        elif "bad" in report:
            source = report["source"]
            say(f"{source} sent a wrong block {report['bad']} to {peer.name}; nobody takes from it any more")
            chain.distrust(source, now)
            if source in self.peers:
                self.peers[source].order(check=True)
        elif chain.lost(peer.name, report["lost"], now):
            say(f"{peer.name} cannot take from {report['lost']}: {report['why']}")
        # It waits for an answer, even for the same one.
        peer.ordered = None
        self._send_orders(chain)

    def _waits_for_reader(self, chain: ImageChain, peer: Peer, begin: int, now: float) -> bool:
        """Whether a node with a part of the image joins later.

        It may have more than the reader of the store, and would then read in its place. How much the reader has, it tells when it
        has stopped: by its last report, blocks would be read twice.
        """
        reader = next((one.name for one in chain.members if one.source == STORE), None)
        if not 0 < begin < chain.blocks or reader is None or reader == peer.name or reader not in self.peers:
            return False
        self._joining[peer.name] = begin
        if self._paused is None:
            self._paused, self._paused_at = reader, now
            self.peers[reader].order(pause=True)
        return True

    def _join_waiting(self, chain: ImageChain, now: float) -> None:
        """Take in the nodes that waited for the reader of the store, and tell everybody where to take from."""
        names = [self._paused, *self._joining]
        for name, begin in self._joining.items():
            chain.join(name, begin, now)
        self._joining, self._paused = {}, None
        for peer in (self.peers[name] for name in names if name in self.peers):
            peer.ordered = None
        self._send_orders(chain)

    def _take_out(self, name: str, now: float) -> None:
        self._joining.pop(name, None)
        if self.chain is not None:
            self.chain.leave(name, now)
            if name == self._paused:
                self._join_waiting(self.chain, now)
            self._send_orders(self.chain)

    # What the coordinator decides

    def look(self, now: float) -> list[Peer]:
        """Pass by slow nodes. Returns the peers that have been silent for too long."""
        if self.chain is not None:
            if self._paused is not None and now - self._paused_at > _PAUSE_S:
                self._join_waiting(self.chain, now)
            passed = self.chain.judge(now)
            if passed is not None:
                say(f"{passed[0]} is passed by: {passed[1]}")
                self._send_orders(self.chain)
        return [peer for peer in self.peers.values() if now - peer.seen > _SILENT_S]

    def over(self, now: float) -> bool:
        """Whether every node has the image or has failed. A node that never came is not waited for for long."""
        known = self.done | self.failed.keys()
        if not known or not self.peers.keys() <= known:
            return False
        return len(known) >= self.expected or now - self.changed > _ABSENT_S

    def summary(self, now: float) -> Iterator[tuple[str, str]]:
        """Pairs of a key and a value for the batch script's event."""
        yield "nodes", str(len(self.done))
        yield "store_bytes", str(self.store_bytes)
        yield "seconds", f"{now - self.began:.1f}"

    def take_list(self, text: str, now: float, maker: str | None = None) -> None:
        """Use a list of blocks: from the store, or from the node that made it. Another image's list is not used."""
        blocks = image_blocks.parse(text, self.sha256)
        if blocks is None:
            return
        self._blocks, self._made, self._maker = blocks, maker is not None, None
        self.chain = ImageChain(blocks.count)
        self._joining, self._paused = {}, None
        if maker is not None:
            # It has the whole image, so the others are behind it.
            self.chain.join(maker, blocks.count, now)
            self.keep(text)
        for peer in self.peers.values():
            peer.ordered = None
            peer.order(list=text)

    def _doubt_list(self, why: str, last: str) -> None:
        """A block of the store is not the listed one. A node that checks the whole image makes the list again.

        last: the digest of the last block of the doubted list.
        """
        if self._blocks is None or self._blocks.digests[-1] != last:
            return
        if self._made:
            # The list was made from the right bytes in this start.
            for peer in self.peers.values():
                peer.order(fail=why)
        else:
            say(f"{why}; the list of blocks is made again")
            self._blocks = self.chain = None
            self._joining, self._paused = {}, None
            self._choose_maker()

    def _choose_maker(self) -> None:
        """Let one node list the blocks: from its own file, or while it copies the image."""
        if self._blocks is not None or self._maker is not None or not self.peers:
            return
        maker = next((one for one in self.peers.values() if one.done), None) or next(iter(self.peers.values()))
        self._maker = maker.name
        maker.order(make=True)

    def _send_orders(self, chain: ImageChain) -> None:
        """Tell each node its source, where that has changed."""
        for name, source in chain.sources().items():
            peer, giver = self.peers.get(name), None if source is None else self.peers.get(source)
            if peer is None or (giver is None and source not in (None, STORE)):
                continue
            order = (source, giver.address, giver.port) if giver is not None else (source, "", 0)
            if order != peer.ordered:
                peer.ordered = order
                peer.order(source=source, address=order[1], port=order[2])
        waiting = [one for one in chain.members if not chain.complete(one)]
        if waiting and all(one.source is None for one in waiting) and self._all_came():
            for one in waiting:
                self.peers[one.name].order(fail=f"no node can read {self.stored}")

    def _all_came(self) -> bool:
        return len(self.peers.keys() | self.failed.keys()) >= self.expected
