"""The advice and the command that an answer ends with, for the run that it is about."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kit.errors import RunError
from kit.health.answer import Answer
from kit.health.run_record import Record
from kit.record.manifest import BY_KIT_RUN, IN_PYTHON
from kit.validation import COMMAND_LINE, toml

_ADVISED = re.compile(r"\b(?P<verb>set )?(?P<key>retry\.(?P<name>in_allocation|requeue))\b")
# A text that --set reads as itself, and no shell changes.
_PLAIN = re.compile(r"(?!true$|false$|inf$|nan$)[A-Za-z][A-Za-z_./-]*")


def for_run(record: Record, answer: Answer) -> Answer:
    """The answer with a next command that names a run without a job file, and repeats what the command line had set. Its advice
    asks for more of what the run has used up.
    """
    answer = replace(answer, advice=_ADVISED.sub(lambda found: _more(record, found), answer.advice))
    place = str(record.values["job_file"] or "")
    verb, separator, more = answer.next.partition(f" {place}")
    if not place or not separator or verb not in ("kit submit", "kit render"):
        return answer
    if Path(place).name in (BY_KIT_RUN, IN_PYTHON):
        again = f"kit rerun {record.run_dir.name}{more if more.startswith(' --set') else ''}"
        return replace(answer, next=again if verb == "kit submit" else f"kit logs {record.run_dir.name} --tail 50")
    taken = re.findall(rf"{COMMAND_LINE} '?([\w.]+)=", more)
    words = [f" {COMMAND_LINE} {word}" for key, word in _settings(record).items() if key not in taken]
    return replace(answer, next=f"{verb}{separator}{''.join(words)}{more}")


def _more(record: Record, advised: re.Match[str]) -> str:
    """The advice of a key of [retry], or of more of it in a job that has used it up."""
    most, made = record.restarts.get(advised["name"], (0, -1))
    if made < most:
        return advised[0]
    return f"{'raise' if advised['verb'] else 'a larger'} {advised['key']} (its {most} is used up)"


def _settings(record: Record) -> dict[str, str]:
    """Key -> the word for --set, of each key that the command line had set; empty where the run does not say."""
    try:
        keys = [key for one in record.status.manifest.set_by if one.kind in {"set", "words"} for key in one.keys]
        return {key: _word(key, _value(record.job, key)) for key in keys}
    except (KeyError, TypeError, RunError):
        return {}


def _value(job: Mapping[str, Any], key: str) -> Any:
    found: Any = job
    for name in key.split("."):
        found = found[name]
    return found


def _word(key: str, value: Any) -> str:
    text = value if isinstance(value, str) and _PLAIN.fullmatch(value) else toml(value)
    return shlex.quote(f"{key}={text}")
