"""DiLoCo's outer loop: every few inner steps a fragment of the model is averaged over the replica groups.

    DiLoCo            Douillard et al., arXiv 2311.08105: pseudo-gradient = global - local, outer Nesterov SGD
    Streaming DiLoCo  Douillard et al., arXiv 2501.18512: fragments in turn, traffic under computing, mixing by alpha

One outer step averages one fragment. Fragment 0 is averaged after H / F inner steps, fragment 1 after as many more, and
so on, so that each fragment is averaged every H steps. After the last inner step every fragment is averaged once more, each
in a separate outer step. With overlap, the fragment whose average is in flight at that time is left out: its last `delay`
inner steps do not count.

All groups hold the same global parameters, to the last bit. Each meeting compares checksums. A group whose checksum differs
takes the others' state; it may have committed alone when the others' connections broke. A group that fails in a meeting
meets again with the same pseudo-gradient, so a peer's death costs time, not steps.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from lib import host_copy
from lib.ranks import Ranks
from quantise import Average
from quorum import DaemonResult, MeetingFailed, Members, Seat
from replica_group import ReplicaGroup
from state import Globals, give_inner, local, take_inner
from torch import nn

BEHIND = -1  # sent to the lighthouse instead of the outer step: this group needs another group's state
Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class OuterSettings:
    """`every` inner steps (H) average each of the `fragments` (F) once. An average takes `delay` of these steps."""

    steps: int  # inner steps of the whole training
    every: int  # H of the papers
    fragments: int = 1  # F: more than 1 is Streaming DiLoCo
    delay: int = 0  # inner steps from the start of an average to its use; 0: the group waits for it
    alpha: float = 0.0  # share of a group's own parameters in the mix after an average; 0: the average replaces them
    lr: float = 0.7  # of the outer optimizer, as the momentum below
    momentum: float = 0.9
    bits: int = 32  # of each value sent; 32: float32, nothing is rounded
    top_k: float = 0.0  # share of the values that are sent; 0: all

    @property
    def interval(self) -> int:
        """Inner steps from one outer step to the next."""
        return self.every // self.fragments

    def check(self, blocks: int) -> None:
        """End the program where the settings do not fit together. The error shows the numbers."""
        if not 1 <= self.fragments <= blocks:
            raise SystemExit(f"--fragments {self.fragments} must be from 1 to {blocks}, the layers of the model.")
        if self.every < 1 or self.every % self.fragments:
            raise SystemExit(f"--sync-every {self.every} must be a multiple of --fragments {self.fragments}.")
        if not 0 <= self.top_k <= 1:
            raise SystemExit(f"--top-k {self.top_k:g} must be from 0 (send all) to 1.")
        # Both are compressions of the same vector. The values of top_k travel as whole float32.
        if self.top_k and self.bits != 32:
            raise SystemExit(f"--top-k {self.top_k:g} and --bits {self.bits} cannot be used together; choose one.")
        # One average is in flight at a time: it must have landed when the next one starts.
        if not 0 <= self.delay < self.interval:
            raise SystemExit(f"--overlap {self.delay} must be below sync-every / fragments, {self.interval}.")


def ended(position: dict[str, int], settings: OuterSettings) -> bool:
    """Whether all inner steps are done, and every fragment was averaged after the last one."""
    return position["step"] >= settings.steps and position["flushed"] >= settings.fragments


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """The data that the members exchanged: whose pseudo-gradients count, the inner step of the average, seconds waited."""

    members: Members  # the groups of this quorum, in the order of their ranks
    weights: list[int]  # of each member: 1 with a pseudo-gradient; 0 for one that has none, as after taking state
    step: int  # the inner step at which all members are after this outer step
    waited: float  # the most seconds that a member has waited in open()

    @property
    def weight(self) -> int:
        return self.weights[self.members.me]


class OuterLoop:
    """The outer loop of one rank. `meanwhile` is called with the position while this rank waits for others, and may raise."""

    def __init__(  # noqa: PLR0917 - the parts of a rank
        self,
        net: nn.Module,
        inner: list[torch.optim.Optimizer],
        seat: Seat,
        group: ReplicaGroup,
        world: Ranks,
        settings: OuterSettings,
        wire: torch.device,
        meanwhile: Callable[[dict[str, int]], None],
    ) -> None:
        self.settings = settings
        self._wire = wire
        self._net, self._inner, self._seat, self._group, self._meanwhile = net, inner, seat, group, meanwhile
        self.globals = Globals(
            net, world, wire, fragments=settings.fragments, lr=settings.lr, momentum=settings.momentum
        )
        # seat.pg connects rank i of this group to rank i of the others. world.control connects the ranks of this group.
        self._average = Average(seat.pg, settings.bits, settings.top_k)
        # Outer steps; inner steps; inner steps at the last outer step; fragments averaged after the last inner step.
        self.position = {"outer": 0, "step": 0, "committed": 0, "flushed": 0}
        self._behind = False  # this group's parameters differ from those of most groups: it takes theirs
        # With overlap: the meeting, the pseudo-gradient that it averages, and the mean, once the thread has it.
        self._in_flight: tuple[Meeting, torch.Tensor, DaemonResult[torch.Tensor]] | None = None
        self._present: list[int] = []  # groups at the last outer step, to log who joined and left
        self._waited = {"quorum": 0.0, "average": 0.0}  # seconds since the last record

    @property
    def done(self) -> bool:
        return ended(self.position, self.settings)

    @property
    def fragment(self) -> int:
        """The number of the next fragment to average."""
        return self.position["outer"] % self.settings.fragments

    @property
    def landing(self) -> int:
        """The inner step after which the next average is used."""
        # After the last inner step this is the current step, so that every call of synchronise() averages one more fragment.
        return min(self.position["committed"] + self.settings.interval, self.settings.steps)

    def open(self, patience: float) -> Record | None:
        """Wait for the other groups at a start, at most `patience` seconds once there are enough for a quorum.

        Where the others are already training, this group takes part in their next outer step without a pseudo-gradient
        of its own, and trains only after that. Returns the record of that step.
        """
        began = time.monotonic()
        while True:
            meeting = self._meet(0, waited=time.monotonic() - began)  # weight 0: it only meets the others
            if sum(meeting.weights):  # some group has a pseudo-gradient, so they are training
                return self._finish(meeting)
            # The rows of a meeting are the same in all groups, `waited` too. So all groups stop waiting at the same meeting.
            if len(meeting.weights) >= self._group.count or meeting.waited >= patience:
                return None
            time.sleep(0.2)

    def after_inner_step(self) -> Record | None:
        """Count an inner step, and make the outer step if one is due. Returns the record of that outer step."""
        self.position["step"] += 1
        return self.synchronise()

    def synchronise(self) -> Record | None:
        """Do the outer step, if one is due. With overlap, start its average when that is due."""
        if self.position["step"] >= self.landing:
            # Nothing is in flight: there is no overlap, all inner steps are done, or the run was resumed here.
            if self._in_flight is None:
                return self._finish(self._meet(1))
            meeting, values, work = self._in_flight
            self._in_flight = None
            return self._finish(meeting, values, work)
        # Streaming DiLoCo: start now, train on for `delay` inner steps, and use the average at `landing`.
        if self._in_flight is None and self.position["step"] >= self.landing - self.settings.delay:
            meeting = self._meet(1)
            if not meeting.weight:  # this group missed outer steps and took state: finish with the others at once
                return self._finish(meeting)
            self._in_flight = self._launch(meeting)
        return None

    def give(self) -> Record:
        """The state for a group that missed outer steps: the global state, and the moments of the inner optimizers."""
        return {"at": dict(self.position), "globals": self.globals.give(), "inner": give_inner(self._net, self._inner)}

    def take(self, state: Record) -> None:
        """Continue from another group's state. Sets the model to the global parameters."""
        self.position = dict(state["at"])
        self.globals.take(state["globals"])
        take_inner(self._net, self._inner, state["inner"])
        # A group that takes state drops its own inner steps since the last outer step. So its pseudo-gradient would be 0.
        self.globals.put(range(self.settings.fragments))
        self._behind = False
        self._in_flight = None

    def save(self) -> Record:
        """This rank's part of a checkpoint: more than give(), so that this group continues exactly here. See gathered()."""
        # Between outer steps a group's own parameters differ from the global ones.
        own = {name: local(parameter).detach() for name, parameter in self._net.named_parameters()}
        # In the same order on all ranks: gathered() makes one collective for each fragment.
        residuals = dict(sorted(self._average.residuals.items()))
        return self.give() | {"own": own, "residuals": residuals, "fragments": self.settings.fragments}

    def gathered(self, saved: Record, group: dist.ProcessGroup) -> Record:
        """A checkpoint's content, of what save() returned on each rank. Called by all ranks of the process group."""
        return saved | {
            "residuals": {
                number: self.globals.whole(number, part, group) for number, part in saved["residuals"].items()
            }
        }

    def written_by_steps(self) -> Iterator[torch.Tensor]:
        """The tensors of save() that only inner steps and outer steps write."""
        yield from host_copy.written_by_step(self._net, *self._inner, self.globals.optimizer)
        yield from self._average.residuals.values()

    @torch.no_grad()
    def load(self, state: Record, *, own: bool) -> None:
        """Continue from a checkpoint: this group's own, or another group's."""
        self.take(state)
        if self.position["step"] < self.settings.steps:
            self.position["flushed"] = 0  # the job was made longer
        if own:
            for name, parameter in self._net.named_parameters():
                local(parameter).copy_(state["own"][name])
            # With another number of fragments a residual would belong to other parameters.
            if state["fragments"] == self.settings.fragments:
                parts = {number: self.globals.part(whole) for number, whole in state["residuals"].items()}
                self._average.residuals = {number: part.to(self._wire) for number, part in parts.items()}
        else:
            self.position["step"] = self.position[
                "committed"
            ]  # that group's later inner steps are not in its global parameters

    # ---- one outer step ----

    def _meet(self, weight: int, *, waited: float = 0.0) -> Meeting:
        """Join a quorum whose members all hold the same global parameters, and learn whose pseudo-gradients count."""
        began = time.perf_counter()
        while True:
            try:
                # The group at an earlier outer step takes the state of one at the latest. BEHIND is below every outer step, so it
                # asks for state even where the step is right.
                members = self._seat.join(
                    BEHIND if self._behind else self.position["outer"],
                    give=self.give,
                    take=self.take,
                    meanwhile=lambda: self._meanwhile(self.position),
                )
                # Its inner steps were replaced by another group's state: nothing is left to average.
                weight = 0 if members.healed else weight
                mine = (self.position["outer"], self.globals.checksum)
                step = self.landing if weight else self.position["step"]  # the step at which the average lands
                # An all-gather of five int64 from every group. Only then is it known whether all have the same
                # state.
                rows = self._seat.gather([*mine, weight, step, int(waited * 1000)])
            except MeetingFailed:
                # A rank of this group lost its peer, or too few groups came.
                self._seat.again()
                continue
            states = Counter((row[0], row[1]) for row in rows)  # (outer step, checksum) -> groups
            if len(states) == 1:
                break
            # The state of most groups is right. Of equally frequent states, it is the lowest rank's, which comes first.
            self._behind = states.most_common(1)[0][0] != mine
            self._seat.again()
        self._waited["quorum"] += time.perf_counter() - began
        return Meeting(
            members=members,
            # The same in all groups, because all have the same rows.
            weights=[row[2] for row in rows],
            step=max((row[3] for row in rows if row[2]), default=self.position["step"]),
            waited=max(row[4] for row in rows) / 1000,
        )

    def _finish(
        self, meeting: Meeting, values: torch.Tensor | None = None, work: DaemonResult[torch.Tensor] | None = None
    ) -> Record | None:
        """Average, in as many meetings as needed, and step. None where in the end no group has a pseudo-gradient."""
        # `values` is kept from try to try, so that a failed average loses no inner steps.
        meetings = 1
        while sum(meeting.weights):
            try:
                if values is None:
                    values = self.globals.pseudo_gradient(self.fragment)
                # A vector of float32: the fragment's values, or this rank's part of them.
                mean = self._averaged(meeting, values, work)
                # Two phases: no group uses the average before all have it. Otherwise one group could step
                # alone.
                self._seat.confirm()
            except MeetingFailed:
                self._seat.again()
                # The groups of the new meeting may be others. The average in flight is lost, so the next one starts anew.
                meeting, work, meetings = self._meet(meeting.weight), None, meetings + 1
                values = values if meeting.weight else None  # after taking state it may be another fragment's turn
            else:
                self._step(meeting, mean)
                return self._record(meeting, meetings)
        return None

    def _launch(self, meeting: Meeting) -> tuple[Meeting, torch.Tensor, DaemonResult[torch.Tensor]]:
        """Start the average on a separate thread, and on a GPU on a separate stream."""
        values = self.globals.pseudo_gradient(self.fragment)  # a copy: inner steps may change the model meanwhile
        fragment, weights, me = self.fragment, meeting.weights, meeting.members.me
        if not values.is_cuda:
            return meeting, values, DaemonResult(lambda: self._average(fragment, values, weights, me))

        def average() -> torch.Tensor:
            torch.cuda.set_device(values.device)  # a new thread has GPU 0
            # A stream of its own: on the training's stream, the average and the kernels of inner steps would wait for each other.
            with torch.cuda.stream(torch.cuda.Stream()):
                mean = self._average(fragment, values, weights, me)
                torch.cuda.current_stream().synchronize()  # so that any stream may read `mean`
            return mean

        torch.cuda.current_stream().synchronize()  # `values` must be complete before another stream reads it
        return meeting, values, DaemonResult(average)

    def _averaged(
        self, meeting: Meeting, values: torch.Tensor, work: DaemonResult[torch.Tensor] | None
    ) -> torch.Tensor:
        began = time.perf_counter()
        now = work.value if work else lambda: self._average(self.fragment, values, meeting.weights, meeting.members.me)
        # together(): if one rank of the group loses its peer, all ranks get MeetingFailed and discard their parts.
        mean = self._seat.together(now)
        self._waited["average"] += time.perf_counter() - began
        return mean

    def _step(self, meeting: Meeting, mean: torch.Tensor) -> None:
        # Every group has confirmed this average: its rounding errors now count as owed.
        self._average.commit()
        # All groups have the same mean, so each makes the same outer step by itself, and nothing more is sent.
        self.globals.step(self.fragment, mean)
        # A group without a pseudo-gradient has no local progress to mix in.
        self.globals.put([self.fragment], self.settings.alpha if meeting.weight else 0.0)
        self.position["outer"] += 1
        # A group that only took part jumps to the others' inner step. train.py then reads the data from there.
        self.position["step"] = self.position["committed"] = meeting.step
        if meeting.step >= self.settings.steps:
            self.position["flushed"] += 1

    def _record(self, meeting: Meeting, meetings: int) -> Record:
        present, before = meeting.members.groups, self._present
        self._present = present
        sent, self._average.sent = self._average.sent, 0.0
        waited, self._waited = self._waited, {"quorum": 0.0, "average": 0.0}
        return {
            "outer_step": self.position["outer"],
            "step": self.position["step"],
            "quorum_id": meeting.members.quorum_id,
            "quorum_size": len(present),
            "groups": present,
            "joined": sorted(set(present) - set(before)),
            "left": sorted(set(before) - set(present)),
            "averaged": sum(meeting.weights),
            "recovered": meeting.members.healed,
            "meetings": meetings,
            "bytes_sent": sent,
            "seconds_quorum": waited["quorum"],
            "seconds_average": waited["average"],
            "checksum": f"{self.globals.checksum:016x}",
        }
