"""Rules for the cause of one rank's stall, from its evidence. stall_rules.py chooses the rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kit.health.answer import ADMIN, AGAIN, CODE, JOB, NODE, WITHOUT_NODE, Rule
from kit.health.run_record import shown
from kit.health.stall_evidence import RankEvidence

# Percent of a CPU during one second. The second is for a process in state R: with more processes than CPUs, a loop gets a share.
# share.
_BUSY_PERCENT, _RUNNING_PERCENT = 80, 5
_STACKS = "kit stacks {run} --rank {rank}"


@dataclass(frozen=True)
class Cited:
    """The result of a rule: the lines that show it, and values for the placeholders of its sentences."""

    lines: tuple[int, ...]
    values: dict[str, object]


def stopped(one: RankEvidence) -> Cited | None:
    first = one.processes[0] if one.processes else None
    return Cited((first.at,), {}) if first and first.state in {"T", "t"} else None


def in_kernel(one: RankEvidence) -> Cited | None:
    for process in one.processes:
        # A read from FUSE waits in state S until a signal reaches it.
        if process.state == "D" or process.wchan in {"request_wait_answer", "fuse_wait_answer"}:
            opened = next(iter(one.opened()), None)
            place = one.own
            # During an open() that does not return, the file is not yet open.
            where = f" with {shown(opened[1])} open" if opened else f" in {place.place}" if place else ""
            lines = [process.at, *([opened[0]] if opened else [place.at] if place else [])]
            return Cited(tuple(lines), {"wchan": process.wchan, "file": where})
    return None


def _loading(rank: RankEvidence) -> Cited | None:
    frame = next((f for f in rank.stack if "torch/utils/data/" in f.file), None)
    if frame is None and rank.phase != "data":
        return None
    opened = next(iter(rank.opened()), None)
    lines = tuple(at for at in (frame.at if frame else 0, opened[0] if opened else 0) if at)
    place = rank.own
    where = f", at {place.place}" if place else ""
    return Cited(
        lines or ((place.at,) if place else ()), {"file": f", with {shown(opened[1])} open" if opened else where}
    )


def _saving(one: RankEvidence) -> Cited | None:
    frame = next((f for f in one.stack if "torch/serialization" in f.file or "distributed/checkpoint" in f.file), None)
    if frame is None and one.phase != "save":
        return None
    found = frame or one.own
    return Cited((found.at,) if found else (), {"place": f", at {found.place}" if found else ""})


def _holds_gil(rank: RankEvidence) -> Cited | None:
    first = rank.processes[0] if rank.processes else None
    if not rank.holds or first is None or first.state != "S" or first.cpu >= _BUSY_PERCENT:
        return None
    place = rank.own
    return Cited(
        (rank.holds, *([place.at] if place else [])),
        {"place": f" in {place.place}" if place else "", "wchan": first.wchan},
    )


def _other_collective(one: RankEvidence) -> Cited | None:
    return Cited((one.collective.at,), {"own": one.collective.function}) if one.collective else None


def _busy_loop(one: RankEvidence) -> Cited | None:
    first = one.processes[0] if one.processes else None
    busy = first is not None and (first.cpu >= _BUSY_PERCENT or (first.state == "R" and first.cpu >= _RUNNING_PERCENT))
    if first is None or not busy or one.collective:
        return None
    place = one.own
    return Cited(
        (first.at, *([place.at] if place else [])), {"place": place.place if place else first.command, "cpu": first.cpu}
    )


def _elsewhere(one: RankEvidence) -> Cited | None:
    return Cited((one.own.at,), {"place": one.own.place}) if one.own and not one.collective else None


RULES: tuple[tuple[Rule, Callable[[RankEvidence], Cited | None]], ...] = (
    (
        Rule(
            id="stall-stopped",
            verdict=AGAIN,
            pattern="",
            says="{culprit} is stopped, by SIGSTOP or a debugger{waiting}",
            advice="kill -CONT on its node lets it continue, with all that waits for it",
            next="kit shell --attach {run} --node {node}",
        ),
        stopped,
    ),
    (
        Rule(
            id="stall-kernel",
            verdict=ADMIN,
            pattern="",
            says="{culprit} waits in the kernel ({wchan}){file}{waiting}",
            advice="a read or a write that does not come back: the storage, or the network to it; no signal ends it",
            next=_STACKS,
        ),
        in_kernel,
    ),
    (
        Rule(
            id="stall-gil",
            verdict=CODE,
            pattern="",
            says="{culprit} holds the interpreter{place} while it waits ({wchan}){waiting}",
            advice="native code that blocks and does not release the GIL: no other thread of the rank can run",
            next=_STACKS,
        ),
        _holds_gil,
    ),
    (
        Rule(
            id="stall-data",
            verdict=JOB,
            pattern="",
            says="{culprit} is in its data loader{file}{waiting}",
            advice="its storage, or a worker of the loader, does not answer; the stacks show which",
            next=_STACKS,
        ),
        _loading,
    ),
    (
        Rule(
            id="stall-save",
            verdict=CODE,
            pattern="",
            says="{culprit} is saving{place}{waiting}",
            advice="a save that only some ranks begin waits for the others; or its storage does not answer",
            next=_STACKS,
        ),
        _saving,
    ),
    (
        Rule(
            id="stall-order",
            verdict=CODE,
            pattern="",
            says="{culprit} is in {own}, and {others} ranks are in {where}: they call collectives in a different order",
            advice="every rank has to call the same collectives in the same order; look for one under an `if rank`",
            next=_STACKS,
        ),
        _other_collective,
    ),
    (
        Rule(
            id="stall-loop",
            verdict=CODE,
            pattern="",
            says="{culprit} runs in {place} and takes {cpu} % of a CPU{waiting}",
            advice="a loop that does not end, or one step's work that is far longer on this rank",
            next=_STACKS,
        ),
        _busy_loop,
    ),
    (
        Rule(
            id="stall-elsewhere",
            verdict=CODE,
            pattern="",
            says="{culprit} is in {place}{waiting}",
            advice="look why it stays there while the others continued",
            next=_STACKS,
        ),
        _elsewhere,
    ),
)


SHAPE = Rule(
    id="stall-shape",
    verdict=CODE,
    pattern="",
    says="{culprit} called {own}, and {others} ranks called {where}",
    advice="a collective takes tensors of one shape and type on all ranks; look for a last batch that is smaller, or a branch",
    next=_STACKS,
)
ORDER = next(rule for rule, _ in RULES if rule.id == "stall-order")
UNREACHABLE = Rule(
    id="stall-unreachable",
    verdict=NODE,
    pattern="",
    says="{culprit}: its node {node} did not answer when evidence was gathered, and {others} ranks of other nodes wait",
    advice="the node, or its network, is gone: Slurm gives it up after SlurmdTimeout; leave it out",
    next=WITHOUT_NODE,
)
UNANSWERED = Rule(
    id="stall-unanswered",
    verdict=AGAIN,
    pattern="",
    says="the cause of the stall is unknown: {silent} nodes gave no evidence when it was gathered, and {answered} did",
    advice="so many nodes are rarely ill at once: Slurm may have started no step on them in time; ask again for stacks",
    next="kit stacks {run}",
)
DOWN = Rule(
    id="role-down",
    verdict=AGAIN,
    pattern="",
    says="role {role}{where} {is_down}: it ended with {code} and is started again ({times} so far); {waiting}",
    advice="it comes back by itself as often as its `restart` allows; where it ends again and again, its log says why",
    next="kit logs {run} --tail 50",
)
CLOCK = Rule(
    id="clock-wrong",
    verdict=ADMIN,
    pattern="",
    says="it continues, and the clock of {node} is {seconds} s {way} that of the run folder's file system",
    advice="times in the logs of this node are wrong by as much, and Slurm refuses a node that is off by minutes: chrony or ntpd",
    next="kit nodes",
)
