"""docs/schema is what the models say, and every command with --json has a schema, which the site has."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import typer

from kit.answers import schemas as of_answers
from kit.answers.schema_versions import SINCE, version
from kit.cli import app
from kit.schema import schemas
from tests import json_answers
from tests.support import REPO

SCHEMAS = REPO / "docs" / "schema"


@pytest.mark.parametrize("noun", sorted(schemas()))
def test_schema_file_is_up_to_date(noun: str) -> None:
    path = SCHEMAS / f"{noun}.schema.json"
    assert json.loads(path.read_text()) == schemas()[noun].model_json_schema(), "run 'make schema'"


def test_no_other_file_is_there() -> None:
    assert {path.name for path in SCHEMAS.iterdir()} == {f"{name}.schema.json" for name in schemas()}


def test_the_site_has_the_schemas_of_answers(tmp_path: Path) -> None:
    """They are made from the models when the site is built: docs/reference/answers.md shows what changes in them."""
    hook = runpy.run_path(str(REPO / "scripts" / "answer_schemas.py"))
    hook["on_post_build"](config={"site_dir": str(tmp_path)})
    made = {path.name.removesuffix(".schema.json"): path for path in (tmp_path / "schema").iterdir()}
    assert {*made} == {of_answers.file_name(command) for command in of_answers.answers()}
    assert json.loads(made["kit-status"].read_text()) == of_answers.schema("status")


def with_json(group: Any, above: str = "") -> set[str]:
    """All commands with the option --json."""
    found = set[str]()
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if hasattr(command, "list_commands"):
            found |= with_json(command, f"{above}{name} ")
        elif any("--json" in one.opts for one in command.params):
            found.add(f"{above}{name}")
    return found


def test_every_command_with_json_has_a_schema() -> None:
    assert with_json(typer.main.get_command(app)) == {*of_answers.answers()} - {of_answers.ERROR}


@pytest.mark.parametrize("command", sorted(of_answers.answers()))
def test_every_object_has_a_version(command: str) -> None:
    made = of_answers.schema(command)
    tables = [*of_answers.tables(made, made)]
    assert tables
    assert all("schema_version" in one["properties"] for one in tables)
    assert set(SINCE.get(command, {}).values()) <= {*range(2, version(command) + 1)}


def test_a_wrong_answer_is_found() -> None:
    """The check that tests of commands make (tests/json_answers.py)."""
    good = {"schema_version": 1, "source": "rank-0", "line": "step 1"}
    json_answers.check(["logs", "--json"], 0, json.dumps(good), "")
    for bad in (
        {**good, "more": 1},
        {**good, "line": 1},
        {**good, "schema_version": 2},
        {"source": "rank-0", "line": ""},
    ):
        with pytest.raises(AssertionError, match=re.escape("kit-logs: the schema does not describe")):
            json_answers.check(["logs", "--json"], 0, f"{json.dumps(good)}\n{json.dumps(bad)}", "")
    with pytest.raises(AssertionError, match="error: the schema does not describe"):
        json_answers.check(["logs", "x", "--json"], 7, "", 'a warning\n{"error": "none"}')
    json_answers.check(["logs", "--", "--json"], 0, "text", "")
    json_answers.check(["logs", "--json"], -9, '{"half', "")
