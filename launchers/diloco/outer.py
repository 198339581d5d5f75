"""DiLoCo's outer loop: every few inner steps a part of the model is averaged over the replica groups.

    DiLoCo            Douillard et al., arXiv 2311.08105: pseudo-gradient = global - local, outer Nesterov SGD
    Streaming DiLoCo  Douillard et al., arXiv 2501.18512: fragments in turn, traffic under computing, mixing by alpha

One outer step averages one fragment. Fragment 0 is averaged after H / F inner steps, fragment 1 after as many more, and
so on, so that each comes round every H steps. After the last inner step all fragments are averaged once more, each in
an outer step of its own, so that no inner step is lost.

All groups hold the same global parameters, to the last bit; each meeting compares checksums. A group that differs (it
committed alone, say, when the others' connections broke) takes the others' state. A group that fails in a meeting
meets again with the same pseudo-gradient, so a peer's death costs time, not steps.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from groups import Group
from lib.ranks import Ranks
from quantise import Average
from quorum import Answer, Failed, Members, Seat
from torch import nn
from torch.distributed.tensor import DTensor

BEHIND = -1  # told to the lighthouse instead of the outer step: this group needs another's state


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`every` inner steps (H) bring each of the `fragments` round once; the sum of a fragment takes `delay` of them."""

    every: int
    fragments: int
    delay: int
    alpha: float
    lr: float
    momentum: float
    bits: int
    steps: int

    @property
    def interval(self) -> int:
        """Inner steps from one outer step to the next."""
        return self.every // self.fragments

    def check(self, blocks: int) -> None:
        """Refuse what cannot be, with the numbers."""
        if not 1 <= self.fragments <= blocks:
            raise SystemExit(f"--fragments {self.fragments}: from 1 to {blocks}, the model's layers.")
        if self.every < 1 or self.every % self.fragments:
            raise SystemExit(f"--sync-every {self.every} must be a multiple of --fragments {self.fragments}.")
        if not 0 <= self.delay < self.interval:
            raise SystemExit(f"--overlap {self.delay}: from 0 to {self.interval - 1}, below sync-every / fragments.")


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """What the members told each other: who counts how much, and the furthest inner step."""

    members: Members
    weights: list[int]
    step: int
    waited: float

    @property
    def weight(self) -> int:
        """0 after taking state: what this group did before was left behind."""
        return 0 if self.members.healed else self.weights[self.members.me]


class DiLoCo:
    """The outer state of one rank. `meanwhile` is called while waiting for others and may raise to leave."""

    def __init__(
        self,
        net: nn.Module,
        inner: list[torch.optim.Optimizer],
        seat: Seat,
        group: Group,
        here: Ranks,
        settings: Settings,
        wire: torch.device,
        meanwhile: Callable[[], None],
    ) -> None:
        self.settings, self.seat = settings, seat
        self._group, self._here, self._inner, self._meanwhile = group, here, inner, meanwhile
        self.parameters = dict(net.named_parameters())
        self._sharded = any(isinstance(parameter, DTensor) for parameter in self.parameters.values())
        self.fragments = split(net, settings.fragments)
        self.globals = {
            name: local(p).detach().to(wire, torch.float32, copy=True) for name, p in self.parameters.items()
        }
        self.optimizer = torch.optim.SGD(
            list(self.globals.values()), lr=settings.lr, momentum=settings.momentum, nesterov=settings.momentum > 0
        )
        self.average = Average(seat.pg, settings.bits)
        # outer steps done; inner steps done, and when the last outer step was; fragments averaged since the last inner
        # step of all
        self.at = {"outer": 0, "step": 0, "committed": 0, "flushed": 0}
        self.checksum = self._checksum()
        self._behind = False
        self._flying: tuple[Meeting, torch.Tensor, Answer[torch.Tensor]] | None = None
        self._members: list[int] = []

    # ---- when ----

    @property
    def done(self) -> bool:
        """Whether all inner steps are done and all fragments averaged after the last."""
        return ended(self.at, self.settings)

    @property
    def due(self) -> bool:
        """Whether the next thing to do is an outer step rather than an inner one."""
        since = self.at["step"] - self.at["committed"]
        return since >= self.settings.interval or self.at["step"] >= self.settings.steps

    def launch_if_due(self) -> dict[str, Any]:
        """With overlap: start a fragment's sum `delay` inner steps before it is used. Returns the seconds waited."""
        since = self.at["step"] - self.at["committed"]
        if self._flying is not None or since < self.settings.interval - self.settings.delay or self.due:
            return {}
        began = time.perf_counter()
        meeting = self._meet(1)
        if meeting.weight:
            values = self._pseudo_gradient()
            fragment, weights, me = self.fragment, meeting.weights, meeting.members.me
            self._settle()
            work = Answer(lambda: self.average(fragment, values, weights, me))
            self._flying = (meeting, values, work)
        else:  # the others were ahead, and this group has taken their state: go on with them at once
            self._complete(meeting, None)
        return {"seconds": time.perf_counter() - began}

    def open(self, patience: float) -> dict[str, Any] | None:
        """At a start: wait for the other groups, at most `patience` seconds once there are enough of them.

        When they are under way, take part in their next outer step, and only then train. Returns its record.
        """
        began = time.monotonic()
        while True:
            meeting = self._meet(0, waited=time.monotonic() - began)
            if sum(meeting.weights):
                return self._complete(meeting, None)
            self.at["step"] = self.at["step"] if self.at["step"] > self.at["committed"] else meeting.step
            if len(meeting.weights) >= self._group.count or meeting.waited >= patience:
                return None
            time.sleep(0.2)

    def synchronise(self) -> dict[str, Any]:
        """Average the fragment whose turn it is, and go on from the result. Returns the record of the outer step."""
        if self._flying is not None:
            meeting, values, work = self._flying
            self._flying = None
            return self._complete(meeting, values, work)
        return self._complete(self._meet(1), None)

    # ---- how ----

    @property
    def fragment(self) -> int:
        return self.at["outer"] % self.settings.fragments

    def _meet(self, weight: int, *, waited: float = 0.0) -> Meeting:
        """Join a quorum and hear the members' rows, until all that are in it have the same global parameters."""
        healed = False
        while True:
            try:
                members = self.seat.join(
                    BEHIND if self._behind else self.at["outer"],
                    give=self.give,
                    take=self.take,
                    meanwhile=self._meanwhile,
                )
                healed = healed or members.healed
                mine = [self.at["outer"], self.checksum, 0 if healed else weight, self.at["step"], int(waited * 1000)]
                rows = self.seat.gather(mine)
            except Failed:
                self.seat.again()
                continue
            states = Counter((outer, checksum) for outer, checksum, *_ in rows)
            if len(states) == 1:
                return Meeting(
                    members=members,
                    weights=[row[2] for row in rows],
                    step=max(row[3] for row in rows),
                    waited=max(row[4] for row in rows) / 1000,
                )
            # most_common keeps the order of first appearance among equals: the lowest rank's state wins a tie
            self._behind = states.most_common(1)[0][0] != (self.at["outer"], self.checksum)
            self.seat.again()

    def _complete(
        self, meeting: Meeting, values: torch.Tensor | None, work: Answer[torch.Tensor] | None = None
    ) -> dict[str, Any]:
        """Average in this meeting, or in further ones until one works out; then step the outer optimizer."""
        times = {"seconds": 0.0, "seconds_average": 0.0}
        began = time.perf_counter()
        attempts = 1
        while True:
            try:
                if work is None and values is None:
                    values = self._pseudo_gradient()
                mean = self._averaged(meeting, values, work, times)
                self.seat.confirm()
                break
            except Failed:
                attempts += 1
                self.seat.again()
                work = None
                meeting = self._meet(meeting.weight)
                if not meeting.weight:
                    values = None
        weights = sum(meeting.weights)
        if weights:
            self._apply(mean)
            self.at["outer"] += 1
            self.at["step"] = self.at["committed"] = meeting.step
            self.at["flushed"] += meeting.step >= self.settings.steps
        times["seconds"] = time.perf_counter() - began
        return self._record(meeting, attempts, times)

    def _averaged(
        self, meeting: Meeting, values: torch.Tensor, work: Answer[torch.Tensor] | None, times: dict[str, float]
    ) -> torch.Tensor:
        began = time.perf_counter()
        weights, me = meeting.weights, meeting.members.me
        average = work.value if work is not None else lambda: self.average(self.fragment, values, weights, me)
        mean = self.seat.together(average) if sum(weights) else values
        times["seconds_average"] += time.perf_counter() - began
        return mean
