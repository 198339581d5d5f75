"""The skill and AGENTS.md name commands, options, tools and files that exist; llms.txt lists every page."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from kit.cli.groups import PLACES
from kit.health import answer
from kit.mcp import resources, tools
from tests.support import REPO

SKILL = (REPO / "docs/agents/SKILL.md").read_text(encoding="utf-8")
GUIDE = (REPO / "docs/guides/agents.md").read_text(encoding="utf-8")
AGENTS = (REPO / "AGENTS.md").read_text(encoding="utf-8")


def test_the_skill_is_printed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kit", "skill"], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == SKILL == resources.skill()
    assert re.match(r"---\nname: [a-z-]+\ndescription: .{40,1000}\n---\n", SKILL), "the head that agents read first"


@pytest.mark.parametrize("command", sorted(set(re.findall(r"`kit ([a-z-]+)", SKILL + GUIDE + AGENTS))))
def test_its_commands_exist(command: str) -> None:
    assert command in PLACES


def test_it_has_eight_commands() -> None:
    table = SKILL.partition("## Eight commands")[2].partition("## ")[0]
    assert len(re.findall(r"^\| `kit ", table, re.MULTILINE)) == 8


def test_its_verdicts_are_those_of_kit_why() -> None:
    table = SKILL.partition("| verdict | do |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| ([a-z ]+) \|", table, re.MULTILINE)
    known = answer.CODE, answer.JOB, answer.AGAIN, answer.NODE, answer.ADMIN, answer.WAIT, answer.NOTHING
    assert rows == [*known]


def test_tools_that_are_named_exist() -> None:
    rows = re.findall(r"^\| (`[a-z_`, ]+) \| ", GUIDE.partition("| tool | does |")[2].partition("## ")[0], re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([a-z_]+)`", row)]
    assert sorted(named) == sorted(tools.TOOLS)


def test_limits_that_are_named_exist() -> None:
    from kit.mcp.limits import Limits

    rows = re.findall(
        r"^\| (`[a-z_`, ]+) \| ", GUIDE.partition("| key | limits |")[2].partition("\n\n")[0], re.MULTILINE
    )
    assert sorted(name for row in rows for name in re.findall(r"`([a-z_]+)`", row)) == sorted(Limits.model_fields)


def test_files_that_agents_md_names_exist() -> None:
    named = re.findall(r"`((?:kit|tests|docs|templates|launchers)/[\w/.]*)`", AGENTS)
    assert named
    assert [one for one in named if not (REPO / one).exists()] == []


def test_llms_txt_lists_every_page(tmp_path: Path) -> None:
    from mkdocs.config import load_config

    nav = load_config(str(REPO / "mkdocs.yml"))["nav"]
    hook = runpy.run_path(str(REPO / "scripts/llms_txt.py"))
    hook["on_post_build"](
        config={
            "docs_dir": str(REPO / "docs"), "site_dir": str(tmp_path), "site_name": "a", "site_description": "b",
            "nav": nav,
        }
    )  # fmt: skip
    written = (tmp_path / "llms.txt").read_text(encoding="utf-8")
    pages = re.findall(r"^- \[.+?\]\((.+?\.md)\)", written, re.MULTILINE)
    every = {str(path.relative_to(REPO / "docs")) for path in (REPO / "docs").rglob("*.md")}
    assert set(pages) == every
    assert all((tmp_path / page).is_file() for page in pages)
