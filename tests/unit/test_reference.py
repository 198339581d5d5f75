"""docs/reference and the man pages are made from the code, and what they are made from is complete."""

from __future__ import annotations

import re
import runpy
from typing import Any, get_args

import pytest
import typer

from kit.cli import app
from kit.schema import run_events
from kit.schema.job import RankVariable
from kit.schema.rank_variables import OF_THE_RANK, OF_THE_RUN
from kit.schema.run_exit_codes import RunExitCode
from tests.support import REPO
from tests.unit.test_health import ids

MADE: dict[str, str] = runpy.run_path(str(REPO / "scripts" / "reference.py"))["pages"]()
SCRIPTS = [path.read_text(encoding="utf-8") for path in sorted((REPO / "templates").rglob("*.sh"))]


def test_the_pages_are_those_that_the_code_makes() -> None:
    docs = REPO / "docs"
    there = {
        str(path.relative_to(docs)): path.read_text(encoding="utf-8")
        for folder in ("reference", "man")
        for path in (docs / folder).rglob("*.*")
    }
    assert sorted(there) == sorted(MADE), "run 'make reference'"
    assert [name for name in MADE if there[name] != MADE[name]] == [], "run 'make reference'"


def commands(group: Any, name: str = "kit") -> list[tuple[str, Any]]:
    found = [(name, group)]
    for inner in group.list_commands(None) if hasattr(group, "list_commands") else ():
        found += commands(group.get_command(None, inner), f"{name} {inner}")
    return found


def test_every_command_and_option_is_there() -> None:
    text = MADE["reference/commands.md"]
    for name, command in commands(typer.main.get_command(app)):
        assert name == "kit" or f"# `{name}`\n" in text
        assert f"man/{name.replace(' ', '-')}.1" in MADE
        for option in command.params:
            assert all(flag in text for flag in option.opts if flag.startswith("--")), (name, option.opts)


def test_no_help_text_holds_what_rich_takes_for_markup() -> None:
    """`[notify]` in a help text is not shown on a terminal."""
    for name, command in commands(typer.main.get_command(app)):
        for text in [command.help or "", *(getattr(one, "help", "") or "" for one in command.params)]:
            assert not re.search(r"\[[a-z]", text), (name, text)


@pytest.mark.parametrize("noun", ["job", "cluster", "image", "launcher", "mounts", "table"])
def test_every_key_has_a_meaning(noun: str) -> None:
    rows = re.findall(r"^\| `.*$", MADE[f"reference/{noun}.md"], flags=re.MULTILINE)
    assert rows
    assert [row for row in rows if re.search(r"\| *\|$", row)] == [], "give the field a description"


def test_the_events_are_those_that_the_scripts_and_the_ranks_record() -> None:
    recorded = {name for text in SCRIPTS for name in re.findall(r"events::record ([a-z]+)", text)}
    for name in ("kit_events.py", "kit_memory.py"):
        ranks = (REPO / "templates" / "kit_node" / name).read_text(encoding="utf-8")
        recorded |= {*re.findall(r"\brecord\(\"([a-z-]+)\"", ranks)}
    assert recorded == set(run_events.EVENTS)


def test_the_exit_codes_are_those_of_the_scripts() -> None:
    codes = {int(code) for text in SCRIPTS for code in re.findall(r"readonly \w+_code=(7\d)\b", text)}
    assert codes == set(RunExitCode)


def test_variables_for_options_are_among_those_of_a_rank() -> None:
    assert set(get_args(RankVariable)) <= {*OF_THE_RANK, *OF_THE_RUN}


def test_every_rule_is_on_the_page() -> None:
    page = MADE["reference/rules.md"]
    assert {one for one in ids() if f"| `{one}` |" not in page} == {"batch-error", "not-known", "unknown"}, (
        "what is left when no rule fits"
    )
