"""Rules for stalled ranks: which rank the others wait for, and why, from the reports and the gathered evidence.

The reports (progress.py) show which rank is behind. The evidence (stall_evidence.py) shows where each rank is: the culprit is at
another place than the others. stall_cause_rules.py finds what keeps it there.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kit.files import untrusted_files
from kit.health import collectives, progress, stall_evidence
from kit.health.answer import RESUME, Answer, Evidence, Rule, filled
from kit.health.rules.stall_cause_rules import (
    CLOCK,
    DOWN,
    ORDER,
    RULES,
    SHAPE,
    UNANSWERED,
    UNREACHABLE,
    Cited,
    in_kernel,
    stopped,
)
from kit.health.run_record import Record, shown
from kit.health.stall_evidence import GatheredEvidence, RankEvidence
from kit.schema.run_paths import RunPaths

# Exit code of stall_watch.sh: it ended the ranks because they stood still.
ENDED_CODE = 76
_CITED = 8


def live(record: Record) -> Answer | None:
    """Ranks of a running job that are stalled now, or one that the others wait for at every step."""
    ranks = _reported(record)
    event, stall = _last_stall(record), progress.stall(ranks)
    if (event or stall or not ranks) and (down := _down(record, ranks, event)):
        return down
    if event and (by_evidence := _by_evidence(record, event)):
        slow = event["rule"] == "observed-slow"
        return replace(by_evidence, line=f"it may be slow: {by_evidence.line}") if slow else by_evidence
    if stall is None:
        return _by_event(record, event) if event else _straggles(record, ranks) or _clock(record, ranks)
    known = {**record.values, **progress.values(stall, ranks)}
    cited = tuple(
        Evidence(file="monitor", line=0, text=f"{one.name}: step {one.step}, {one.phase}, for {one.idle:.0f} s")
        for one in dict.fromkeys((*stall.culprits[:_CITED], *stall.stalled[: 2 * _CITED]))
    )
    return _filled(stall.rule, known, cited[:_CITED])


def _down(record: Record, ranks: Sequence[progress.RankProgress], stall: dict[str, object] | None) -> Answer | None:
    """A role, such as a lighthouse or an inference server, that ended and is not back yet, or came back after
    others stood still.
    """
    since = float(str(stall.get("epoch", 0))) - float(str(stall.get("idle", 0))) if stall else math.inf
    last: dict[str, dict[str, object]] = {}
    times: Counter[str] = Counter()
    checked: set[str] = set()
    back: set[str] = set()
    for event in record.events:
        name = str(event.get("role", ""))
        if event["event"] in {"attempt", "start"}:
            last, times, checked, back = {}, Counter(), set(), set()
        elif event["event"] == "restart":
            last[name] = event
            times[name] += 1
            back.discard(name)
        elif event["event"] in {"ready", "lost"} or (event["event"] == "role" and name not in checked):
            # Without a readiness check, a role is back as soon as it is started.
            back.add(name)
            checked |= {name} if event["event"] == "ready" else set()
    away = [name for name, event in last.items() if name not in back or float(str(event.get("epoch", 0))) > since]
    if not away:
        return None
    role = away[0]
    nodes = _nodes_of(record, role)
    wait = sum(one.role != role and one.phase != "end" for one in ranks)
    known = {
        "role": role,
        "where": f" on {nodes}" if nodes else "",
        "is_down": "was down" if role in back else "is down",
        "code": last[role].get("exit_code"),
        "times": "once" if times[role] == 1 else f"{times[role]} times",
        "waiting": f"{wait} {'rank waits' if wait == 1 else 'ranks wait'} for it" if wait else "the others wait for it",
    }
    text = f"restart of {role} at {last[role].get('time', '')}: it ended with {last[role].get('exit_code')}"
    return _filled(DOWN, {**record.values, **known}, (Evidence(file="state/events.jsonl", line=0, text=text),))


def _nodes_of(record: Record, role: str) -> str:
    """The role's nodes, as the batch script placed it; empty if its file cannot be read."""
    try:
        placed = json.loads(untrusted_files.read_text(RunPaths(record.run_dir).state / "roles.json", most=1 << 20))
        return shown(" ".join(placed[role]["nodes"]))
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def ended(record: Record) -> Answer | None:
    """The answer for a run that was ended because its ranks stood still."""
    event = _last_stall(record)
    if record.status.exit_code != ENDED_CODE or event is None:
        return None
    found = _by_evidence(record, event) or _by_event(record, event)
    line = f"its ranks stood still, and it was ended: {found.line}"
    return replace(found, line=line, next=filled(RESUME, record.values))


def _reported(record: Record) -> list[progress.RankProgress]:
    """The reports of the ranks since their last start."""
    return progress.read_ranks(record.run_dir, record.status.job_id, since=progress.begun(record.events))


def _by_event(record: Record, event: dict[str, object]) -> Answer:
    """An answer from the batch script's record of the alarm."""
    role, where = event.get("role"), f"rank {event.get('rank')} on {event.get('node')}"
    known = {
        **record.values,
        **event,
        "culprit": f"{f'role {role}: ' if role else ''}{where}",
        "age": event.get("idle"),
        "does": "has been gone" if _is_gone(event) else f"has stood still ({event.get('phase')})",
    }
    step = "" if event["rule"] in progress.OBSERVED else f" step {event.get('step')},"
    text = f"{where}:{step} {event.get('phase')}, for {event.get('idle')} s"
    cited = Evidence(file="state/events.jsonl", line=0, text=text)
    return _filled(progress.STALLS[str(event["rule"])], known, (cited,))


def _last_stall(record: Record) -> dict[str, object] | None:
    """The newest alarm; None if the ranks continued after it or were started again."""
    for event in reversed(record.events):
        if event["event"] in {"progress", "attempt", "start"}:
            return None
        if event["event"] == "stall" and event.get("rule") in progress.STALLS:
            return event
    return None


def _by_evidence(record: Record, event: dict[str, object]) -> Answer | None:
    """An answer from each rank's place at the alarm; None if the places do not explain it."""
    role, rank = str(event.get("role", "")), str(event.get("rank", ""))
    folder = RunPaths(record.run_dir).state / f"stall-{event.get('number')}"
    gathered = stall_evidence.read_evidence(record.run_dir, folder, first=(role, rank))
    if _has_no_evidence(event, gathered):
        return None
    ranks = [evidence for evidence in gathered.ranks if evidence.role == role]
    sick = any(_stopped_or_in_kernel(evidence) for evidence in ranks)
    if not sick and (found := _unreachable(record, role, gathered, folder, UNREACHABLE)):
        return found
    if not any(stopped(evidence) or in_kernel(evidence) for evidence in ranks) and (
        found := _by_recorder(record, ranks)
    ):
        return found
    nobody = event["rule"] in {"stalled-together", "stalled-silent", "observed-node"}
    culprits = _culprits(ranks, [] if nobody else [evidence for evidence in ranks if str(evidence.rank) == rank])
    if not any(_stopped_or_in_kernel(evidence) for evidence in culprits):
        # All of them may wait for another role, such as a lighthouse or an inference server.
        culprits = [
            evidence for evidence in gathered.ranks if evidence.role != role and _stopped_or_in_kernel(evidence)
        ] or culprits
    return _why_there(record, culprits, ranks) or _unreachable(record, role, gathered, folder, UNANSWERED)


def looked_at(record: Record, texts: Mapping[str, str]) -> Answer | None:
    """An answer from the evidence of all ranks of a running job at this moment: file name -> text.

    One look cannot tell work from a stall, so it says only which ranks are elsewhere than the others, which all wait in a
    collective, and for a rank that is stopped or waits in the kernel, that the others wait for it. None if there is no such rank.
    """
    gathered = [RankEvidence(file=name, lines=tuple(text.split("\n"))) for name, text in texts.items()]
    gathered = [evidence for evidence in gathered if evidence.rank >= 0]
    for role in dict.fromkeys(evidence.role for evidence in gathered):
        ranks = [evidence for evidence in gathered if evidence.role == role]
        culprits = _culprits(ranks, [])
        blamed = {id(evidence) for evidence in culprits}
        waiting = [evidence for evidence in ranks if id(evidence) not in blamed]
        if not culprits or len(culprits) > len(waiting) or not all(evidence.collective for evidence in waiting):
            continue
        answer = _why_there(record, culprits, ranks)
        if answer is None:
            continue
        shows = tuple(
            Evidence(file="kit stacks", line=0, text=f"{evidence.file}: {evidence.text}")
            for evidence in answer.evidence
        )
        if any(_stopped_or_in_kernel(evidence) for evidence in culprits):
            return replace(answer, evidence=shows)
        slow = progress.STALLS["observed-slow"]
        line = f"it may be slow: {answer.line}"
        return replace(answer, rule=slow.id, verdict=slow.verdict, advice=slow.advice, line=line, evidence=shows)
    return None


def _why_there(record: Record, culprits: Sequence[RankEvidence], ranks: Sequence[RankEvidence]) -> Answer | None:
    """What keeps the first of the culprits that a rule knows; None if none does."""
    blamed = {id(one) for one in culprits}
    waiting = [one for one in ranks if id(one) not in blamed]
    for rule, look in RULES:
        for one in culprits:
            if (cited := look(one)) and not (rule is ORDER and _is_where_the_others_are(one, waiting)):
                known, shows = _describe(one, cited, len(culprits), waiting)
                return _filled(rule, {**record.values, **known}, shows)
    return None


def _is_gone(event: dict[str, object]) -> bool:
    return str(event.get("phase", "")).startswith("gone:")


def _has_no_evidence(event: dict[str, object], gathered: GatheredEvidence) -> bool:
    """Whether the alarm names a rank that has ended, or a node that gave none: the others' places say nothing about it."""
    return _is_gone(event) or (event["rule"] == "observed-node" and str(event.get("node", "")) not in gathered.nodes)


def _unreachable(record: Record, role: str, gathered: GatheredEvidence, folder: Path, rule: Rule) -> Answer | None:
    """Nodes without any evidence, while others of the role gave some: UNREACHABLE, or UNANSWERED where most nodes gave none.

    A rank that has ended gives none, and a rank whose file was not read has answered.
    """
    if not gathered.answered or not (folder / "complete").exists():
        return None
    reported = [rank for rank in _reported(record) if rank.role == role]
    nodes = gathered.nodes | {rank.node for rank in reported if (role, rank.rank) in gathered.answered}
    gone = [rank for rank in reported if rank.node not in nodes and rank.phase != progress.ENDED]
    silent = sorted({rank.node for rank in gone})
    answered = len({rank.node for rank in reported} & nodes)
    if not gone or (UNANSWERED if len(silent) > answered else UNREACHABLE) is not rule:
        return None
    known = {**record.values, "culprit": gone[0].name, "rank": gone[0].rank, "node": ", ".join(silent)}
    known |= {"others": sum(of == role for of, _ in gathered.answered), "silent": len(silent), "answered": answered}
    cited = [
        Evidence(
            file="monitor",
            line=0,
            text=f"{rank.name}: step {rank.step}, {rank.phase}; no evidence came from {rank.node}",
        )
        for rank in gone[:_CITED]
    ]
    return _filled(rule, known, tuple(cited))


def _by_recorder(record: Record, ranks: Sequence[RankEvidence]) -> Answer | None:
    """Ranks that called another collective than the others, or one of another shape."""
    odd = collectives.odd([culprit.calls for culprit in ranks])
    if odd is None or odd.how == "behind":
        return None
    culprit = ranks[odd.places[0]]
    other = next(r for place, r in enumerate(ranks) if place not in odd.places and odd.others in r.calls)
    known, _ = _describe(
        culprit, Cited((), {}), len(odd.places), [r for n, r in enumerate(ranks) if n not in odd.places]
    )
    known |= {"own": odd.own.what, "where": odd.others.what}
    shows = tuple(
        Evidence(file=r.file, line=c.line, text=shown(r.lines[c.line - 1].strip()))
        for r, c in ((culprit, odd.own), (other, odd.others))
    )
    return _filled(SHAPE if odd.how == "shape" else ORDER, {**record.values, **known}, shows)


def _culprits(ranks: Sequence[RankEvidence], named: Sequence[RankEvidence]) -> list[RankEvidence]:
    """The ranks that are in another place than most ranks. If the reports name some of these, only the named ones."""
    sick = [rank for rank in ranks if _stopped_or_in_kernel(rank)]
    outside = [rank for rank in ranks if not _waits(rank)]
    waits = Counter(rank.collective.function for rank in ranks if rank.collective)
    if 0 < len(outside) < len(ranks):
        odd = outside
    elif (calls := collectives.odd([rank.calls for rank in ranks])) is not None:
        odd = [ranks[place] for place in calls.places]
    elif len(waits) > 1:
        odd = [rank for rank in ranks if rank.collective and rank.collective.function != waits.most_common(1)[0][0]]
    else:
        places = Counter(rank.own.place for rank in ranks if rank.own)
        most = places.most_common(1)
        odd = [o for o in ranks if o.own and o.own.place != most[0][0]] if most and most[0][1] * 2 > len(ranks) else []
    both = [rank for rank in odd if any(rank is other for other in named)]
    return sick or both or odd or list(named)


def _stopped_or_in_kernel(one: RankEvidence) -> bool:
    return stopped(one) is not None or (in_kernel(one) is not None and not _waits(one))


def _waits(one: RankEvidence) -> bool:
    return one.collective is not None or one.phase == "communicate"


def _is_where_the_others_are(one: RankEvidence, waiting: Sequence[RankEvidence]) -> bool:
    """Whether no other rank is known to be in another collective."""
    own = one.collective.function if one.collective else ""
    return {other.collective.function for other in waiting if other.collective} <= {own}


def _describe(
    culprit: RankEvidence, cited: Cited, culprits: int, waiting: Sequence[RankEvidence]
) -> tuple[dict[str, object], tuple[Evidence, ...]]:
    """Values for a rule's placeholders, and the lines that show it: the culprit's, and those of two waiting ranks."""
    where = Counter(r.collective.function for r in waiting if r.collective).most_common(1)
    collective = f" in {where[0][0]}" if where else ""
    others = f"{len(waiting)} {'rank waits' if len(waiting) == 1 else 'ranks wait'}"
    more = f" and {culprits - 1} more" if culprits > 1 else ""
    role = f"role {culprit.role}: " if culprit.role else ""
    known = {
        "culprit": f"{role}rank {culprit.rank} ({culprit.node}){more}",
        "rank": culprit.rank,
        "node": culprit.node,
        "waiting": f"; {others} for it{collective}" if waiting else "",
        "others": len(waiting),
        "where": where[0][0] if where else "others",
        **cited.values,
    }
    lines = [(culprit, at) for at in cited.lines] + [(r, r.collective.at) for r in waiting if r.collective][:2]
    return known, tuple(Evidence(file=r.file, line=at, text=shown(r.lines[at - 1].strip())) for r, at in lines)


def _straggles(record: Record, ranks: Sequence[progress.RankProgress]) -> Answer | None:
    found = progress.straggler(ranks)
    if found is None:
        return None
    one, share = found
    values = {**record.values, "culprit": one.name, "node": one.node, "rank": one.rank}
    own = one.took - one.waited
    values |= {"share": round(100 * share), "own": f"{own:.3g}", "took": f"{one.took:.3g}"}
    values["reads"] = f"; {one.read:.3g} s of them it reads data" if progress.reads(one, ranks) else ""
    text = f"{one.name}: {one.took - one.waited:.3g} s of each step's {one.took:.3g} s outside communicate"
    return _filled(progress.STRAGGLES, values, (Evidence(file="monitor", line=0, text=text),))


def _clock(record: Record, ranks: Sequence[progress.RankProgress]) -> Answer | None:
    one = next((r for r in ranks if progress.clock_is_wrong(r)), None)
    if one is None:
        return None
    seconds, way = f"{abs(one.skew):.0f}", "ahead of" if one.skew > 0 else "behind"
    cited = Evidence(file="monitor", line=0, text=f"{one.node}: a line of {one.skew:+.0f} s")
    return _filled(CLOCK, {**record.values, "node": one.node, "seconds": seconds, "way": way}, (cited,))


def _filled(rule: Rule, known: dict[str, object], cited: tuple[Evidence, ...]) -> Answer:
    return Answer(
        rule=rule.id,
        verdict=rule.verdict,
        line=filled(rule.says, known),
        advice=filled(rule.advice, known),
        next=filled(rule.next, known),
        evidence=cited,
    )
