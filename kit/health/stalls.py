"""Rules of ranks that stand still: which rank the others wait for, and why, by their reports and by the evidence that was gathered.

The reports (progress.py) say which rank is behind. The evidence (evidence.py) says where each rank is: the culprit is the one that
is not where the others are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kit.health import evidence, progress
from kit.health.answer import ADMIN, AGAIN, CODE, JOB, RESUME, Answer, Evidence, Rule, filled
from kit.health.evidence import RankEvidence
from kit.health.record import Record, shown
from kit.spec.paths import RunPaths

# stall_watch.sh: the ranks were ended since they stood still.
ENDED_CODE = 76
_CITED = 8
# Percent of a CPU over a second; the second where it is found running: with more processes than CPUs a loop gets its share.
_BUSY, _RUNS = 80, 5
_STACKS = "kit stacks {run} --rank {rank}"


@dataclass(frozen=True)
class Cited:
    """What a rule found: the lines that show it, and what its sentences are filled with."""

    lines: tuple[int, ...]
    values: dict[str, object]


def _stopped(one: RankEvidence) -> Cited | None:
    first = one.processes[0] if one.processes else None
    return Cited((first.at,), {}) if first and first.state in {"T", "t"} else None


def _in_kernel(one: RankEvidence) -> Cited | None:
    for process in one.processes:
        if process.state == "D":
            opened = next(iter(one.opened()), None)
            lines = (process.at, *([opened[0]] if opened else []))
            return Cited(lines, {"wchan": process.wchan, "file": f" with {shown(opened[1])} open" if opened else ""})
    return None


def _loading(one: RankEvidence) -> Cited | None:
    frame = next((f for f in one.stack if "torch/utils/data/" in f.file), None)
    if frame is None and one.phase != "data":
        return None
    opened = next(iter(one.opened()), None)
    lines = tuple(at for at in (frame.at if frame else 0, opened[0] if opened else 0) if at)
    place = one.own
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


def _other_collective(one: RankEvidence) -> Cited | None:
    return Cited((one.collective.at,), {"own": one.collective.function}) if one.collective else None


def _loops(one: RankEvidence) -> Cited | None:
    first = one.processes[0] if one.processes else None
    busy = first is not None and (first.cpu >= _BUSY or (first.state == "R" and first.cpu >= _RUNS))
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
            advice="kill -CONT on its node lets it go on, with all that waits for it",
            next="kit shell --attach {run} --node {node}",
        ),
        _stopped,
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
        _in_kernel,
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
        _loops,
    ),
    (
        Rule(
            id="stall-elsewhere",
            verdict=CODE,
            pattern="",
            says="{culprit} is in {place}{waiting}",
            advice="look why it stays there while the others went on",
            next=_STACKS,
        ),
        _elsewhere,
    ),
)


def live(record: Record) -> Answer | None:
    """Ranks of a running job that stand still now, or one that the others wait for at every step."""
    ranks = progress.read(record.run_dir, record.status.job_id, since=progress.begun(record.events))
    event, found = _last_stall(record), progress.stall(ranks)
    if event and (by_evidence := _by_evidence(record, event)):
        return by_evidence
    if found is None:
        return _by_event(record, event) if event else _straggles(record, ranks)
    known = {**record.values, **progress.values(found, ranks)}
    cited = tuple(
        Evidence(file="monitor", line=0, text=f"{one.name}: step {one.step}, {one.phase}, for {one.idle:.0f} s")
        for one in (*found.culprits, *[r for r in found.stalled if r not in found.culprits])[:_CITED]
    )
    return _filled(found.rule, known, cited)


def ended(record: Record) -> Answer | None:
    """A run that was ended since its ranks stood still."""
    event = _last_stall(record)
    if record.status.exit_code != ENDED_CODE or event is None:
        return None
    found = _by_evidence(record, event) or _by_event(record, event)
    line = f"its ranks stood still, and it was ended: {found.line}"
    return replace(found, line=line, next=filled(RESUME, record.values))


def _by_event(record: Record, event: dict[str, object]) -> Answer:
    """By what the batch script recorded of the alarm."""
    role, where = event.get("role"), f"rank {event.get('rank')} on {event.get('node')}"
    known = {
        **record.values,
        **event,
        "culprit": f"{f'role {role}: ' if role else ''}{where}",
        "age": event.get("idle"),
    }
    text = f"{where}: step {event.get('step')}, {event.get('phase')}, for {event.get('idle')} s"
    cited = Evidence(file="state/events.jsonl", line=0, text=text)
    return _filled(progress.STALLS[str(event["rule"])], known, (cited,))


def _last_stall(record: Record) -> dict[str, object] | None:
    """The newest alarm, unless the ranks went on after it or were started again."""
    for event in reversed(record.events):
        if event["event"] in {"progress", "attempt", "start"}:
            return None
        if event["event"] == "stall" and event.get("rule") in progress.STALLS:
            return event
    return None


def _by_evidence(record: Record, event: dict[str, object]) -> Answer | None:
    """By where each rank was at the alarm; None where that tells nothing."""
    role, rank = str(event.get("role", "")), str(event.get("rank", ""))
    folder = RunPaths(record.run_dir).state / f"stall-{event.get('number')}"
    ranks = [one for one in evidence.read(record.run_dir, folder) if one.role == role]
    nobody = event["rule"] in {"stalled-together", "stalled-silent"}
    culprits = _culprits(ranks, [] if nobody else [one for one in ranks if str(one.rank) == rank])
    waiting = [one for one in ranks if one not in culprits]
    for rule, look in RULES:
        for one in culprits:
            if cited := look(one):
                known, shows = _story(one, cited, len(culprits), waiting)
                return _filled(rule, {**record.values, **known}, shows)
    return None


def _culprits(ranks: Sequence[RankEvidence], named: Sequence[RankEvidence]) -> list[RankEvidence]:
    """Those that are not where most of the others are; of them, where there are some, those that the reports name, too."""
    sick = [one for one in ranks if _stopped(one) or _in_kernel(one)]
    outside = [one for one in ranks if not _waits(one)]
    waits = Counter(one.collective.function for one in ranks if one.collective)
    if 0 < len(outside) < len(ranks):
        odd = outside
    elif len(waits) > 1:
        odd = [one for one in ranks if one.collective and one.collective.function != waits.most_common(1)[0][0]]
    else:
        places = Counter(one.own.place for one in ranks if one.own)
        most = places.most_common(1)
        odd = [o for o in ranks if o.own and o.own.place != most[0][0]] if most and most[0][1] * 2 > len(ranks) else []
    both = [one for one in odd if one in named]
    return sick or both or odd or list(named)


def _waits(one: RankEvidence) -> bool:
    return one.collective is not None or one.phase == "communicate"


def _story(
    one: RankEvidence, cited: Cited, culprits: int, waiting: Sequence[RankEvidence]
) -> tuple[dict[str, object], tuple[Evidence, ...]]:
    """What a rule's sentences are filled with, and the lines that show it: the culprit's, and those of two that wait."""
    where = Counter(r.collective.function for r in waiting if r.collective).most_common(1)
    collective = f" in {where[0][0]}" if where else ""
    others = f"{len(waiting)} {'rank waits' if len(waiting) == 1 else 'ranks wait'}"
    more = f" and {culprits - 1} more" if culprits > 1 else ""
    role = f"role {one.role}: " if one.role else ""
    known = {
        "culprit": f"{role}rank {one.rank} ({one.node}){more}",
        "rank": one.rank,
        "node": one.node,
        "waiting": f"; {others} for it{collective}" if waiting else "",
        "others": len(waiting),
        "where": where[0][0] if where else "others",
        **cited.values,
    }
    lines = [(one, at) for at in cited.lines] + [(r, r.collective.at) for r in waiting if r.collective][:2]
    return known, tuple(Evidence(file=r.file, line=at, text=shown(r.lines[at - 1].strip())) for r, at in lines)


def _straggles(record: Record, ranks: Sequence[progress.Rank]) -> Answer | None:
    found = progress.straggler(ranks)
    if found is None:
        return None
    one, share = found
    values = {**record.values, "culprit": one.name, "node": one.node, "rank": one.rank}
    values |= {"share": round(100 * share), "own": f"{one.took - one.waited:.3g}", "took": f"{one.took:.3g}"}
    text = f"{one.name}: {one.took - one.waited:.3g} s of each step's {one.took:.3g} s outside communicate"
    return _filled(progress.STRAGGLES, values, (Evidence(file="monitor", line=0, text=text),))


def _filled(rule: Rule, known: dict[str, object], cited: tuple[Evidence, ...]) -> Answer:
    return Answer(
        rule=rule.id,
        verdict=rule.verdict,
        line=filled(rule.says, known),
        advice=filled(rule.advice, known),
        next=filled(rule.next, known),
        evidence=cited,
    )
