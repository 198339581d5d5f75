"""Reads the steps that a run's ranks report (kit_rank), and finds the stalled ranks."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kit.files import untrusted_files
from kit.files.json_lines import is_usable_number
from kit.health.answer import AGAIN, CODE, JOB, NODE, Rule
from kit.schema.run_paths import RunPaths

# Read this much from the end of each node's file; with 8 ranks, one line has 500 bytes.
_TAIL_BYTES = 64 << 10
_FILE = re.compile(r"slurm-(?P<job>\d+)\.(?P<node>.+)\.progress")
# Time limits without a report. Slow phases: ten minutes, or ten steps. Other phases: three times the usual time between two
# reports, or twice the longest recent one, at least 8 s (plus the collector's interval). A save or evaluation after the first one:
# three times the longest so far. templates/parts/stall_watch/lib/stall.awk applies the same rules on the nodes.
SLOW = frozenset({"start", "rendezvous", "compile", "save", "evaluate"})
_SLOW_S, _LEAST_S, _USUAL_FACTOR, _SLOW_STEPS, _LONGEST_FACTOR = 600.0, 8.0, 3.0, 10.0, 2.0
# rank.sh reports this phase when its program has ended.
ENDED = "end"
# A straggler's own work is longer than the median of its role by a tenth of a step, and by at least this many seconds.
_STRAGGLER_SHARE, _STRAGGLER_S = 0.1, 0.01
# The collector looks every 2 s and writes at least every 30 s.
_LOOK_S, _QUIET_S = 2.0, 30.0
# A node's clock is wrong if it differs by this much from the file server's clock, which stamps the file.
_CLOCK_S = 10.0
_WAITING = frozenset({"compute", "communicate"})


@dataclass(frozen=True, kw_only=True)
class RankProgress:
    """One rank's last report. step: steps done. idle: seconds since its last report. took: seconds of a step.

    every: steps between two reports. age: seconds since the node's collector last wrote. longest: the longest time between two of
    about the last thousand reports. waited, read: seconds of a step in the phases communicate and data. slowest: the longest
    earlier time in the current phase; 0 if it is the first. skew: seconds by which its node's clock is ahead.
    """

    role: str
    rank: int
    node: str
    step: int
    phase: str
    idle: float
    took: float
    every: int
    age: float
    longest: float = 0.0
    waited: float = 0.0
    read: float = 0.0
    slowest: float = 0.0
    skew: float = 0.0

    @property
    def name(self) -> str:
        """The rank's name in an answer."""
        return f"{f'role {self.role}: ' if self.role else ''}rank {self.rank} on {self.node}"


@dataclass(frozen=True, kw_only=True)
class Stall:
    """Stalled ranks. culprits: those that the others wait for; empty if none can be singled out."""

    rule: Rule
    culprits: tuple[RankProgress, ...]
    stalled: tuple[RankProgress, ...]
    limit: float


STALLS = {
    rule.id: rule
    for rule in (
        Rule(
            id="stalled-node",
            verdict=NODE,
            pattern="",
            says="node {node} has reported nothing for {age} s, and its ranks are stalled",
            advice="look at the node; kit cancel, then continue without it",
            next="kit cancel {run}",
        ),
        Rule(
            id="stalled-behind",
            verdict=CODE,
            pattern="",
            says="{culprit} is stalled at step {step} ({phase}) for {idle} s; {waiting} ranks are further and wait for it",
            advice="its stacks and its log say where it is",
            next="kit stacks {run} --rank {rank}",
        ),
        Rule(
            id="stalled-phase",
            verdict=JOB,
            pattern="",
            says="{culprit} is in its {phase} phase of step {step} for {idle} s; {waiting} ranks wait for it",
            advice="its stacks say where it is: in a data phase, such as at a read from storage",
            next="kit stacks {run} --rank {rank}",
        ),
        Rule(
            id="stalled-together",
            verdict=AGAIN,
            pattern="",
            says="all {count} ranks are stalled at step {step} ({phase}) for {idle} s",
            advice="no rank is behind by what they report; their stacks tell them apart",
            next="kit stacks {run}",
        ),
        Rule(
            id="stalled-silent",
            verdict=AGAIN,
            pattern="",
            says="nothing of the ranks has moved for {idle} s: no CPU time, no output, no GPU",
            advice="they may wait for each other; a program that reports its steps is watched more closely (docs/guides/health.md)",
            next="kit stacks {run}",
        ),
        Rule(
            id="observed-node",
            verdict=NODE,
            pattern="",
            says="node {node} has given no sign of life for {idle} s; {waiting} ranks are on other nodes",
            advice="the node, or its network, is gone: Slurm gives it up after SlurmdTimeout; leave it out",
            next="kit submit {job_file} --set slurm.exclude={node}",
        ),
        Rule(
            id="observed-stall",
            verdict=CODE,
            pattern="",
            says="{culprit} {does} for {idle} s, by its processes; {waiting} ranks wait",
            advice="its stacks and its log say where it is, or how it ended",
            next="kit stacks {run}",
        ),
        Rule(
            id="observed-slow",
            verdict=AGAIN,
            pattern="",
            says="it may be slow: {culprit} has been elsewhere ({phase}) for {idle} s than the other {waiting} ranks, which "
            "do not move",
            advice="this may be work or a wait on purpose, so nothing is ended for it; the stacks show which",
            next="kit stacks {run}",
        ),
    )
}
# Alarms from what is seen of the ranks' processes (templates/parts/observed_ranks/lib/rank_samples.awk).
OBSERVED = frozenset({"observed-node", "observed-stall", "observed-slow"})

STRAGGLES = Rule(
    id="straggler",
    verdict=NODE,
    pattern="",
    says="it continues, and {culprit} costs every rank {share} % of a step: it works {own} s of {took} s while the others "
    "wait{reads}",
    advice="its node may be slow, or its share of the work larger; try without the node",
    next="kit top {run}",
)


def read_ranks(run_dir: Path, job_id: object, *, now: float | None = None, since: float = 0.0) -> list[RankProgress]:
    """The ranks' last reports, by role and rank. now: seconds since the epoch, by the clock of the run folder's file system.

    since: earlier reports belong to an earlier attempt and are ignored.
    """
    now = time.time() if now is None else now
    ranks: list[RankProgress] = []
    for path in sorted(RunPaths(run_dir).monitor.glob("slurm-*.progress")):
        named = _FILE.fullmatch(path.name)
        if named is None or named["job"] != str(job_id):
            continue
        try:
            lines = untrusted_files.tail(path, _TAIL_BYTES).decode(errors="replace").splitlines()
            wrote = path.stat().st_mtime
        except OSError:
            continue
        if lines:
            ranks += [one for one in _of_line(lines[-1], named["node"], now, wrote) if now - one.idle >= since]
    return sorted(ranks, key=lambda one: (one.role, one.rank))


def begun(events: Iterable[Mapping[str, object]]) -> float:
    """The time of the last start of the ranks, in seconds since the epoch; 0 if there was none."""
    return max((float(str(one.get("epoch", 0))) for one in events if one["event"] == "attempt"), default=0.0)


def _of_line(line: str, node: str, now: float, wrote: float) -> list[RankProgress]:
    """The reports in one line, written at `wrote`. Of a truncated line, the complete reports are used."""
    looked, *reports = line.split("\t")
    age, ranks = max(0.0, now - wrote), []
    for report in reports:
        words = report.split(" ")
        try:
            role, _, rank = words[0].rpartition("@")
            step, phase, since, took, every = words[1:6]
            longest, waited, read, slowest = (words[6:10] + ["0"] * 4)[:4]
            if not all(map(is_usable_number, (looked, since, took, longest, waited, read, slowest))):
                continue
            idle = max(0.0, float(looked) - float(since)) + age
            ranks.append(
                RankProgress(
                    role=role, rank=int(rank), node=node, step=int(step), phase=phase, idle=idle, took=float(took),
                    every=int(every), age=age, longest=float(longest), waited=float(waited),
                    read=float(read), slowest=float(slowest), skew=float(looked) - wrote,
                )
            )  # fmt: skip
        except ValueError:
            continue
    return ranks


def limit(phase: str, usual: float | None, longest: float = 0.0, slowest: float = 0.0) -> float:
    """The seconds after which a rank without a report counts as stalled.

    usual: median seconds between two reports of a step; None before the second. longest: the longest such time.
    slowest: the longest time that this phase has taken so far.
    """
    if phase in SLOW and slowest and usual is not None:
        return max(_LEAST_S, _USUAL_FACTOR * max(usual, slowest)) + _LOOK_S
    if phase in SLOW or usual is None:
        return max(_SLOW_S, _SLOW_STEPS * (usual or 0.0))
    return max(_LEAST_S, _USUAL_FACTOR * usual, _LONGEST_FACTOR * longest) + _LOOK_S


def usual(ranks: Sequence[RankProgress]) -> float | None:
    """The median time between two reports of a step, in seconds; None if no rank has made two."""
    return statistics.median(times) if (times := [one.took * one.every for one in ranks if one.every]) else None


def stall(ranks: Sequence[RankProgress]) -> Stall | None:
    """The stalled ranks, and which of them the others wait for. Of several roles, the first with such ranks."""
    # After one rank of a role has ended, the others may still write for a longer time.
    over = {rank.role for rank in ranks if rank.phase == ENDED}
    ranks = [rank for rank in ranks if rank.phase != ENDED]
    for role in dict.fromkeys(rank.role for rank in ranks):
        mine = [rank for rank in ranks if rank.role == role]
        between, longest = usual(mine), max(rank.longest for rank in mine)
        # Unchanged reports are not written, so a report may be as old as the collector's longest pause.
        past = [
            o
            for o in mine
            if o.idle > (_limit_after_an_end(between) if role in over else _limit_of(o, between, longest))
        ]
        # Ranks that wait, at the next step or the end of a save, may wait for a rank that is saving within its time limit.
        late = set(past)
        held = any(rank.phase in SLOW and rank not in late for rank in mine)
        still = [rank for rank in past if not (held and rank.phase in _WAITING | SLOW and not _silent(rank))]
        # A killed collector reports nothing about its ranks. They count as stalled only if ranks of other nodes are stalled.
        if any(not _silent(rank) for rank in still):
            return _judged(mine, still, limit("compute", between, longest))
    return None


def _limit_of(one: RankProgress, between: float | None, longest: float) -> float:
    return limit(one.phase, between, longest, one.slowest)


def _limit_after_an_end(between: float | None) -> float:
    """Seconds that the remaining ranks have after another rank of the role has ended."""
    return limit("save", between)


def _silent(one: RankProgress) -> bool:
    return one.age > _QUIET_S + 3 * _LOOK_S


def clock_is_wrong(one: RankProgress) -> bool:
    """Whether its node's clock differs too much from the file server's."""
    return abs(one.skew) >= _CLOCK_S


def straggler(ranks: Sequence[RankProgress]) -> tuple[RankProgress, float] | None:
    """The rank that the others of its role wait for at every step, and the share of a step that this costs them, from 0 to 1.

    It compares the time of a step outside the phase communicate. None if no rank reports that phase.
    """
    worst: tuple[RankProgress, float] | None = None
    for role in dict.fromkeys(rank.role for rank in ranks):
        mine = [rank for rank in ranks if rank.role == role and rank.every and rank.phase != ENDED]
        if len(mine) < 2 or not any(rank.waited for rank in mine):
            continue
        slowest = max(mine, key=lambda rank: rank.took - rank.waited)
        own = slowest.took - slowest.waited
        more = own - statistics.median(rank.took - rank.waited for rank in mine if rank is not slowest)
        share = more / slowest.took if slowest.took else 0.0
        if share >= _STRAGGLER_SHARE and more >= _STRAGGLER_S and (worst is None or share > worst[1]):
            worst = slowest, min(1.0, share)
    return worst


def reads(one: RankProgress, ranks: Sequence[RankProgress]) -> bool:
    """Whether most of a straggler's extra time is in the phase data."""
    others = [r for r in ranks if r.role == one.role and r.every and r is not one]
    more = one.took - one.waited - statistics.median(r.took - r.waited for r in others)
    return one.read - statistics.median(r.read for r in others) > more / 2


def _judged(mine: Sequence[RankProgress], still: Sequence[RankProgress], most: float) -> Stall:
    silent = [rank for rank in still if _silent(rank)]
    if silent:
        return Stall(rule=STALLS["stalled-node"], culprits=tuple(silent), stalled=tuple(still), limit=most)
    furthest = max(rank.step for rank in mine)
    behind = [rank for rank in still if rank.step < furthest]
    if behind:
        least = min(rank.step for rank in behind)
        behind = [rank for rank in behind if rank.step == least]
        # Among the ranks behind, prefer those that are not waiting.
        busy = [rank for rank in behind if rank.phase not in _WAITING] or behind
        return Stall(rule=STALLS["stalled-behind"], culprits=tuple(busy), stalled=tuple(still), limit=most)
    elsewhere = [rank for rank in still if rank.phase not in _WAITING]
    if not elsewhere and any(rank.phase == "communicate" for rank in mine):
        elsewhere = [rank for rank in still if rank.phase == "compute"]
    if elsewhere and len(elsewhere) < len(mine):
        return Stall(rule=STALLS["stalled-phase"], culprits=tuple(elsewhere), stalled=tuple(still), limit=most)
    return Stall(rule=STALLS["stalled-together"], culprits=(), stalled=tuple(still), limit=most)


def values(alarm: Stall, ranks: Sequence[RankProgress]) -> dict[str, object]:
    """Values for the placeholders in the rule's sentences."""
    culprit = (alarm.culprits or alarm.stalled)[0]
    more = len(alarm.culprits) - 1
    return {
        "culprit": culprit.name + (f" and {more} more" if more > 0 else ""),
        "rank": culprit.rank,
        "node": culprit.node,
        "step": culprit.step,
        "phase": culprit.phase,
        "idle": round(culprit.idle),
        "age": round(culprit.age),
        "waiting": len([r for r in ranks if r.role == culprit.role]) - len(alarm.culprits),
        "count": len(alarm.stalled),
    }
