"""Advice of broken rules, followed: what it says is done to the job, which is planned again, and then keeps the rule."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from kit import config
from kit.errors import ConfigError, Fault
from tests.golden import wrong, wrong_rules
from tests.support import write_job

# Rooms of rules, and the number of their lines that can be followed: advice that becomes a sentence is no longer tried.
ROOMS = {"config": 5, "frameworks": 85, "planning": 38, "workflow": 4}
# Behind it stands another way, or what the line is for.
_REST = re.compile(r"; or |, or |, and let |, on ")
_REMOVE = re.compile(r", and remove (?P<keys>[\w. -]+)$")
_PLACE = re.compile(r" (?:in \[(?P<table>[\w.-]+)\]|(?P<top>at the top of the file))$")
_WORDS = re.compile(r"(?P<words>--[\w.-]+ .+) in args")
Table = dict[str, Any]


def without(table: Table, key: str) -> None:
    """Removes a dotted key, wherever its table is."""
    parent, last = wrong._parent(table, key)
    if isinstance(parent, dict):
        parent.pop(last, None)


def with_line(table: Table, line: str, fault: Fault) -> Table | None:
    """The job with one line of TOML at the place that the advice names, else in place of the wrong one."""
    if not (place := _PLACE.search(line)):
        dotted = re.match(r"[\w-]+\.", line)
        if dotted and "." in fault.key:
            return config.merge(table, tomllib.loads(line))
        return wrong.with_hint(table, Fault(key=fault.key, problem=fault.problem, hint=line))
    written: Mapping[str, Any] = tomllib.loads(line[: place.start()])
    for name in reversed((place["table"] or "").split(".")):
        written = {name: written} if name else written
    made = tomllib.loads(tomli_w.dumps(table))
    if place["top"]:
        without(made, fault.key)
    return config.merge(made, written)


def followed(text: str, fault: Fault) -> Table | None:
    """The job after the advice; None if that is a sentence, a command, or for another file."""
    table = tomllib.loads(text)
    if fault.file and not fault.file.endswith("job.toml"):
        return None
    if fault.hint.startswith("remove the line"):
        without(table, fault.key)
        return table
    hint = _REST.split(fault.hint)[0]
    if found := _WORDS.fullmatch(hint):
        words = shlex.split(found["words"])
        names = {word for word in words if word.startswith("--")}
        old = [
            word
            for before, word in zip(["", *table.get("args", [])], table.get("args", []), strict=False)
            if word.partition("=")[0] not in names and before not in names
        ]
        return {**table, "args": [*old, *words]}
    remove = _REMOVE.search(hint)
    try:
        made = with_line(table, hint[: remove.start()] if remove else hint, fault)
    except tomllib.TOMLDecodeError:
        return None
    if made is not None and remove:
        above = fault.key.rpartition(".")[0]
        for key in remove["keys"].split(" and "):
            without(made, key)
            without(made, f"{above}.{key}")
    return made


class Jobs:
    """Writes each rule's job as the rule has it, or another one in its place, and lets the rule plan it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.text = ""
        self._instead = ""
        monkeypatch.setattr(wrong_rules, "write_job", self._write)

    def _write(self, folder: Path, text: str) -> Path:
        self.text = text
        return write_job(folder, self._instead or text)

    def faults(self, rule: wrong_rules.Rule, folder: Path, instead: str = "") -> tuple[Fault, ...]:
        self.text, self._instead = "", instead
        folder.mkdir()
        try:
            rule.run(folder)
        except ConfigError as error:
            return error.faults
        return ()


def again(one: Fault, fault: Fault, broken: tuple[Fault, ...]) -> bool:
    """Whether a fault that is left is the one whose advice was followed, or one that the advice has made.

    Options have one key, and the next command is the next thing to do.
    """
    if (one.key, one.problem) == (fault.key, fault.problem):
        return True
    other = one.key == "args" or one.hint.startswith("kit ") or one.problem in {old.problem for old in broken}
    return one.key == fault.key and not other


@pytest.mark.parametrize("room", ROOMS)
def test_a_rule_is_kept_when_its_advice_is_followed(room: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, lines, useless = Jobs(monkeypatch), 0, []
    for number, rule in enumerate(wrong_rules.rules()[room]):
        broken, text = jobs.faults(rule, tmp_path / f"{number}"), jobs.text
        for place, fault in enumerate(broken):
            if (after := followed(text, fault)) is None:
                continue
            lines += 1
            left = jobs.faults(rule, tmp_path / f"{number}-{place}", tomli_w.dumps(after))
            useless += [f"{rule.text}\n{fault}\nthen: {one}" for one in left if again(one, fault, broken)]
    assert useless == []
    assert lines >= ROOMS[room], lines
