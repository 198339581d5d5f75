"""Words for where the starts of a run continued: events `resumed` and `memory-off` of templates/kit_node/kit_memory.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# A source of an event `resumed` -> its words.
SOURCES = {"memory": "memory", "neighbour": "the memory of other nodes", "file": "a checkpoint file"}
# Steps that a sentence lists; of more, only the last ones.
_MOST = 5


def last(events: Sequence[Mapping[str, object]]) -> str | None:
    """Where the last start continued, `step 120 from memory`; None if no start did, or none reported it."""
    found = [event for event in events if _is_resumed(event)]
    return f"step {found[-1]['step']} from {SOURCES[str(found[-1]['source'])]}" if found else None


def summary(events: Sequence[Mapping[str, object]]) -> str:
    """All starts in one sentence part, `continued from memory (steps 6, 15)`; empty if none continued.

    If checkpoints in memory were off, the reason follows.
    """
    parts = []
    for source, words in SOURCES.items():
        steps = [str(event["step"]) for event in events if _is_resumed(event) and event["source"] == source]
        if steps:
            listed = ", ".join((["…"] if len(steps) > _MOST else []) + steps[-_MOST:])
            parts.append(f"from {words} ({'step' if len(steps) == 1 else 'steps'} {listed})")
    text = f"continued {', '.join(parts)}" if parts else ""
    off = next((str(event.get("why", "")) for event in events if event["event"] == "memory-off"), "")
    return "; ".join(filter(None, [text, f"without checkpoints in memory: {off}" if off else ""]))


def _is_resumed(event: Mapping[str, object]) -> bool:
    return event["event"] == "resumed" and str(event.get("step")).isdecimal() and event.get("source") in SOURCES
