"""Decides from which node each node takes the image: the order of the chain, and who is passed by.

Each node of the chain takes blocks from the node before it, in their order, and sends them on while it receives. Only the first
reads the image store, and not even it if a node has the image already. A node that is slow, or that sent a wrong block, or that
cannot be reached, sends nothing any more: it takes its blocks from the end of the chain. Nothing here reads a clock or a socket.
Works with any Python from 3.8.
"""

from __future__ import annotations

STORE = "the image store"
# Seconds over which a rate is measured.
WINDOW_S = 4.0
# A trial is worth its cost if the rest takes this long.
_LONG_S = 20.0
_MOST_TRIALS = 2
# A node is slow at less than this part of what its source gets.
_SLOW = 0.5


class ChainNode:
    """A node in the chain. have: its good blocks from the beginning. sends: whether others may take from it."""

    def __init__(self, name: str, have: int, now: float) -> None:
        self.name, self.have, self.seen = name, have, now
        self.sends, self.reads_store = True, True
        self.source: str | None = None
        # The beginning of the present measurement, and where the node was slow.
        self.since, self.had = now, have
        self.rate: float | None = None
        self.slow_at: str | None = None


class ImageChain:
    """The chain of one image of so many blocks."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._order: list[ChainNode] = []
        self._by_name: dict[str, ChainNode] = {}
        self._failures: dict[str, int] = {}
        self._trials = 0

    @property
    def members(self) -> list[ChainNode]:
        """All nodes, in the order of the chain."""
        return list(self._order)

    def find(self, name: str | None) -> ChainNode | None:
        """The member of this name, or None."""
        return None if name is None else self._by_name.get(name)

    def complete(self, member: ChainNode) -> bool:
        """Whether a node has every block."""
        return member.have >= self.blocks

    def join(self, name: str, have: int, now: float) -> None:
        """Take in a node: behind those that have as many blocks, before those that have fewer."""
        self.leave(name, now)
        place = next((i for i, one in enumerate(self._order) if one.have < have or not one.sends), len(self._order))
        self._by_name[name] = ChainNode(name, have, now)
        self._order.insert(place, self._by_name[name])
        self._link(now)

    def leave(self, name: str, now: float) -> None:
        """Take out a node that is gone or has failed."""
        self._order = [one for one in self._order if one.name != name]
        self._by_name.pop(name, None)
        self._link(now)

    def progress(self, name: str, have: int, now: float) -> None:
        """A node's report of its good blocks."""
        member = self.find(name)
        if member is not None:
            member.have, member.seen = have, now

    def lost(self, name: str, source: str, now: float) -> bool:
        """A node could not take from its source. Returns True when that source is passed by: at the second time, or the store."""
        member, giver = self.find(name), self.find(source)
        if member is None or member.source != source:
            return False
        if source == STORE:
            member.reads_store = False
            self._to_end(member, now)
            return True
        self._failures[source] = self._failures.get(source, 0) + 1
        if giver is None or self._failures[source] < 2:
            return False
        self._silence(giver, now)
        return True

    def distrust(self, source: str, now: float) -> None:
        """A node sent a wrong block: nobody takes from it any more."""
        giver = self.find(source)
        if giver is not None:
            self._silence(giver, now)

    def sources(self) -> dict[str, str | None]:
        """Name -> its source: STORE, another name, or None for a node that is complete or has no source left."""
        return {one.name: one.source for one in self._order}

    def judge(self, now: float) -> tuple[str, str] | None:
        """Measure, and pass by one node that holds the others back. Returns (its name, why), or None."""
        for member in self._order:
            self._measure(member, now)
        for member in self._order:
            giver = self.find(member.source)
            if giver is not None and self._holds_back(member, giver):
                return self._pass_by(member, giver, now)
        return self._try_another(now)

    def _measure(self, member: ChainNode, now: float) -> None:
        """Update a node's rate, in blocks a second, once in a window."""
        if member.source is None or self.complete(member):
            member.rate, member.since, member.had = None, now, member.have
        elif now - member.since >= WINDOW_S:
            member.rate = (member.have - member.had) / (now - member.since)
            member.since, member.had = now, member.have

    def _holds_back(self, member: ChainNode, giver: ChainNode) -> bool:
        """Whether others wait for this node, which takes less than its source gets. All may be slow at times, so rates of the same
        time are compared.
        """
        if member.rate is None or giver.rate is None or not self._awaited(member):
            return False
        return giver.have - member.have > max(8, self.blocks // 50) and member.rate < _SLOW * giver.rate

    def _awaited(self, member: ChainNode) -> bool:
        return any(one.source == member.name and not self.complete(one) for one in self._order)

    def _pass_by(self, member: ChainNode, giver: ChainNode, now: float) -> tuple[str, str]:
        """Silence a slow node; or its source, if another node was slow there, too."""
        before = next((one for one in self._order if one.slow_at == giver.name and one is not member), None)
        if before is not None:
            before.sends, before.slow_at = True, None
            self._silence(giver, now)
            self._to_end(before, now)
            return giver.name, "it sends slowly"
        member.slow_at = giver.name
        why = f"it takes {member.rate:.1f} blocks a second, and {giver.name}, its source, {giver.rate:.1f}"
        self._silence(member, now)
        return member.name, why

    def _try_another(self, now: float) -> tuple[str, str] | None:
        """The first node has nobody to be compared with. If the rest takes long, another one tries, once; then another source."""
        first, rate = next(((one, one.rate) for one in self._order if one.rate is not None), (None, 0.0))
        if first is None or self._trials == _MOST_TRIALS or not self._awaited(first):
            return None
        giver = self.find(first.source)
        if (giver is not None and not self.complete(giver)) or self.blocks - first.have < _LONG_S * rate:
            return None
        self._trials += 1
        if self._trials == 1:
            self._to_end(first, now)
            return first.name, "another node tries whether it is faster"
        if giver is None:
            return None
        self._silence(giver, now)
        return giver.name, "another source may be faster"

    def _silence(self, member: ChainNode, now: float) -> None:
        member.sends = False
        self._to_end(member, now)

    def _to_end(self, member: ChainNode, now: float) -> None:
        """Move a node behind those that send; one that does not send, behind all."""
        self._order.remove(member)
        place = sum(one.sends for one in self._order) if member.sends else len(self._order)
        self._order.insert(place, member)
        self._link(now)

    def _link(self, now: float) -> None:
        """Give each node its source. A node whose source changes is measured anew."""
        able = [one for one in self._order if one.reads_store and not self.complete(one)]
        reader = next((one for one in able if one.sends), able[0] if able else None)
        nobody_sends = not any(one.sends for one in self._order)
        last = None
        for member in self._order:
            source = last
            if self.complete(member):
                source = None
            elif last is None and (member is reader or (nobody_sends and member.reads_store)):
                source = STORE
            if source != member.source:
                member.source, member.rate = source, None
                member.since, member.had = now, member.have
            if member.sends and (source is not None or self.complete(member)):
                last = member.name
