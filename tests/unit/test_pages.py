"""Pages that cannot rot: links lead somewhere, keys and commands exist, every block is run or says why not, the site builds."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

from kit import shell
from kit.cli import app
from kit.schema import models
from kit.schema.declared_keys import Declared
from tests.browser import NEEDED, PROGRAM, Browser, Page
from tests.pages import PAGES, blocks, kit_commands, matches, name_of
from tests.support import REPO

ANCHOR = re.compile(r"^#+ (.*)$", re.MULTILINE)
GUIDES = [page for page in PAGES if "docs/reference" not in name_of(page)]


def slug(title: str) -> str:
    """As mkdocs makes an anchor of a heading."""
    words = re.sub(r"[^\w\s-]", "", re.sub(r"`|\[([^\]]*)\]\([^)]*\)", r"\1", title).strip().lower())
    return re.sub(r"[\s]+", "-", words)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (
            anchor and slug(anchor) not in {slug(title) for title in ANCHOR.findall(there.read_text("utf-8"))}
        ):
            wrong.append(target)
    assert wrong == []


def test_comments_name_pages_and_headings_that_exist() -> None:
    """A comment that gives its source, such as docs/internals/learnt.md#slurm."""
    files = [file for folder in ("kit", "clusters", "launchers", "templates") for file in (REPO / folder).rglob("*")]
    texts = [file.read_text("utf-8") for file in files if file.suffix in {".py", ".sh", ".toml", ".j2"}]
    named = {name for text in texts for name in re.findall(r"\bdocs/[\w/-]+\.md#[\w-]+", text)}
    headings = {
        f"{page.relative_to(REPO)}#{slug(title)}"
        for page in (REPO / "docs").rglob("*.md")
        for title in ANCHOR.findall(page.read_text("utf-8"))
    }
    assert {name for name in named if "learnt.md" in name}
    assert named <= headings


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_page_that_is_named_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"(?<![\w/-])((?:docs|launchers|examples|templates|tests|kit|scripts)/[\w./-]+\.\w+)", text))
    assert [one for one in sorted(named) if not (REPO / one).exists() and "NAME" not in one] == []


@pytest.mark.parametrize("page", GUIDES, ids=name_of)
def test_every_block_is_run_or_says_why_not(page: Path) -> None:
    """Shell commands stand in `console` blocks, which tests/cluster/test_pages.py runs; a mark above a block needs a reason."""
    for above, info, body in blocks(page.read_text(encoding="utf-8")):
        assert info.split(" ")[0] not in {"bash", "sh", "shell"}, f"use console: {body}"
        assert info != "console" or body.startswith(("$ ", "# ")), f"a command begins with $: {body}"
        assert "skip:" not in above or re.search(r'skip: \w+ "\w[^"]{9,}"', above), f"give the reason: {above}"


@pytest.mark.parametrize("page", GUIDES, ids=name_of)
def test_a_block_that_is_run_shows_what_any_machine_prints(page: Path) -> None:
    """A machine without Pyxis picks another runtime, so an output that names one is right on some machines only."""
    for above, info, body in blocks(page.read_text(encoding="utf-8")):
        if info == "console" and "skip:" not in above and "--set" not in body:
            shown = re.findall(r"runtime (?:pyxis|enroot|bubblewrap|bare)\b", body)
            assert shown == [], f"write `runtime …`: {body}"


def known(model: type[Any], table: object, place: Declared | None = None) -> list[str]:
    """Keys of a TOML table that a model does not know."""
    here = place or Declared(keys=(), annotation=model)
    if isinstance(table, list):
        return [key for item in table for key in known(model, item, here.item(0))]
    if not isinstance(table, dict) or (here.model is None and here.keys and not _is_named(here)):
        return []
    wrong = []
    for key, value in table.items():
        fields = getattr(here.model, "model_fields", {}) if here.model else {}
        names = {field.alias or name for name, field in fields.items()}
        open_ended = here.model is None or here.model.model_config.get("extra") == "allow" or "root" in fields
        if names and key not in names and not open_ended:
            wrong.append(".".join(map(str, (*here.keys, key))))
            continue
        # Keys of [sweep.search] and [sweep.random] are written as tables and read as dotted names.
        if (*here.keys, key)[0::2] != ("sweep", "keys"):
            wrong += known(model, value, here.key(key))
    return wrong


def _is_named(here: Declared) -> bool:
    return any(getattr(branch, "__origin__", None) is dict for branch in here.branches())


@pytest.mark.parametrize("page", GUIDES, ids=name_of)
def test_keys_of_toml_blocks_exist(page: Path) -> None:
    for _, info, body in blocks(page.read_text(encoding="utf-8")):
        if info.split(" ")[0] != "toml" or "llama3" in info:
            continue
        table = tomllib.loads(body)
        faults = {noun: known(model, table) for noun, model in models().items() if noun != "mounts"}
        assert [] in faults.values(), f"{body}\n{min(faults.items(), key=lambda item: len(item[1]))}"


def test_the_check_of_keys_sees_a_wrong_one() -> None:
    job = models()["job"]
    assert known(job, {"resources": {"nodez": 1}}) == ["resources.nodez"]
    assert known(job, {"roles": {"a": {"nodez": 1}}, "when": [{"nodez": 1}]}) == ["roles.a.nodez", "when.0.nodez"]
    assert known(job, {"env": {"X": "1"}, "megatron": {"num_layers": 1, "other": 2}}) == []


@pytest.mark.parametrize("page", GUIDES, ids=name_of)
def test_commands_and_options_exist(page: Path) -> None:
    wrong = []
    for words in kit_commands(page.read_text(encoding="utf-8")):
        command: Any = typer.main.get_command(app)
        # Words after -- are the program's.
        rest = list(words)[: [*words, "--"].index("--")]
        while rest and hasattr(command, "list_commands"):
            if rest[0] in command.list_commands(None):
                command = command.get_command(None, rest.pop(0))
            elif not re.fullmatch(r"[a-z][a-z-]*", rest[0]):
                break
            else:
                wrong.append(" ".join(words))
                break
        flags = {flag for one in command.params for flag in (*one.opts, *one.secondary_opts)} | {"--help", "-h"}
        wrong += [
            " ".join(words)
            for word in rest
            if re.match(r"--?[a-z][^ ]*$", word)
            and not hasattr(command, "list_commands")
            and word.partition("=")[0] not in flags
        ]
    assert wrong == []


def test_an_output_that_is_not_the_shown_one_is_noticed() -> None:
    assert matches("digits-… COMPLETED", "digits-1a2b  COMPLETED")
    assert matches("one\n…\nfour", "one\ntwo\nthree\nfour\n")
    assert not matches("two", "one\n")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site that `make docs` makes."""
    pytest.importorskip("material", reason="mkdocs-material is not installed: make setup")
    folder = tmp_path_factory.mktemp("docs") / "site"
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    shell.run(argv, cwd=REPO, timeout=300)
    return folder


def test_the_site_builds_and_asks_nobody(site: Path) -> None:
    files = [path for path in site.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 10_000_000
    assert len([path for path in files if path.suffix == ".html"]) > 40
    for path in files:
        if path.suffix == ".html":
            text = path.read_text(encoding="utf-8")
            assert not re.findall(r"<(?:script|img|iframe|link)[^>]+(?:src|href)=\"?(?:https?:)?//", text), path
            assert "@import url(http" not in text


# The words that people type, and the page that answers.
QUERIES = {
    "install": "guides/install.html",
    "pip install": "guides/install.html",
    "uv tool install": "guides/install.html",
    "conda": "guides/install.html",
    "upgrade": "guides/install.html",
    "uninstall": "guides/install.html",
    "command not found": "guides/install.html",
    "without network wheels": "guides/install.html",
    "pdb": "guides/debug.html",
    "breakpoint": "guides/debug.html",
    "debug rank": "guides/debug.html",
    "debugpy": "guides/debug.html",
    "BdbQuit": "guides/debug.html",
    "post-mortem": "guides/debug.html",
    "arguments": "guides/arguments.html",
    "hyperparameters": "guides/arguments.html",
    "command line": "guides/arguments.html",
    "tensorboard": "guides/metrics.html",
    "wandb": "guides/metrics.html",
    "weights biases": "guides/metrics.html",
    "submitit": "guides/moving.html",
    "torchx": "guides/moving.html",
    "nemo-run": "guides/moving.html",
    "skypilot": "guides/moving.html",
    "map_array": "guides/moving.html",
    "shared install": "guides/administrator.html",
    "module lmod": "guides/administrator.html",
    "qos account": "guides/administrator.html",
    "administrator": "guides/administrator.html",
    "sbatch script": "guides/migrate.html",
    "jupyter notebook": "guides/remote.html",
    "laptop ssh": "guides/remote.html",
    "sweep grid": "guides/sweeps.html",
    "time limit": "guides/preempted.html",
    "preempted requeue": "guides/preempted.html",
    "hang": "guides/hang.html",
    "checkpoint": "guides/checkpoints.html",
    "requirements.txt": "guides/images.html",
    "report": "guides/report.html",
    "slack": "guides/notices.html",
}


@pytest.fixture(scope="module")
def sections(site: Path) -> dict[str, list[str]]:
    """The text of each section in the site's search index, with its title, by the page's place in the site."""
    found: dict[str, list[str]] = {}
    for one in json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]:
        text = re.sub(r"<[^>]+>", " ", f"{one['title']} {one['text']}")
        found.setdefault(one["location"].partition("#")[0], []).append(text.lower())
    return found


def test_the_search_finds_what_people_type(sections: dict[str, list[str]]) -> None:
    """A section of the right page has all words of the query."""
    missed = {
        query: page
        for query, page in QUERIES.items()
        if not any(all(word in text for word in query.lower().split()) for text in sections[page])
    }
    assert missed == {}
    assert len(QUERIES) >= 40


# Names of the parts of a page that are wider than the page, and of pictures that did not load or have no text.
_OVERFLOWS = """
[...document.querySelectorAll('.md-content img')].filter(e => !e.alt || !e.naturalWidth).map(e => e.src).concat(
    document.documentElement.scrollWidth > innerWidth ? [`the page: ${document.documentElement.scrollWidth} pixels`] : [],
    innerWidth < 1000 ? [] : [...document.querySelectorAll('.language-console pre > code, .language-text pre > code')]
        .filter(e => e.scrollWidth > e.clientWidth + 4).map(e => e.textContent.slice(0, 80)))
"""


@pytest.mark.slow
@pytest.mark.skipif(not PROGRAM, reason=NEEDED)
@pytest.mark.parametrize("width", [1280, 390])
def test_every_page_fits_a_screen_and_asks_nobody(site: Path, tmp_path: Path, width: int) -> None:
    wrong = {}
    with Browser(tmp_path) as browser:
        # 404.html names its files from the root of a web server; these are read from the disk.
        for path in sorted(set(site.rglob("*.html")) - {site / "404.html"}):
            page = Page(browser, path.as_uri(), width=width)
            asked = [url for url in page.requests if not url.startswith(site.as_uri())]
            if found := [*page.evaluate(_OVERFLOWS), *asked]:
                wrong[str(path.relative_to(site))] = found
            page.ask("Page.close")
    assert wrong == {}


# The scheme of the page, and the pictures that it shows.
_COLOURS = """[document.body.getAttribute("data-md-color-scheme"),
    [...document.querySelectorAll(".md-content picture img")].filter(e => e.offsetParent).map(e => e.currentSrc)]"""


@pytest.mark.skipif(not PROGRAM, reason=NEEDED)
def test_the_site_and_its_pictures_follow_the_system_on_every_visit(site: Path, tmp_path: Path) -> None:
    with Browser(tmp_path) as browser:
        for dark in (False, True, False):
            page = Page(browser, (site / "index.html").as_uri(), dark=dark)
            scheme, pictures = page.evaluate(_COLOURS)
            page.ask("Page.close")
            assert scheme == ("slate" if dark else "default")
            assert ["-dark" in one for one in pictures] == [dark]


def test_every_page_is_in_the_navigation() -> None:
    """mkdocs --strict names a page that is not; this does where mkdocs is not installed."""
    listed = set(re.findall(r"[\w-]+(?:/[\w-]+)*\.md", (REPO / "mkdocs.yml").read_text(encoding="utf-8")))
    docs = REPO / "docs"
    assert {str(page.relative_to(docs)) for page in docs.rglob("*.md")} == listed
