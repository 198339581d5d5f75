"""A hook of mkdocs: writes llms.txt, the list of all pages for language models (https://llmstxt.org)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any


def on_post_build(*, config: Any) -> None:
    """Write site/llms.txt from the navigation, and each page as Markdown beside its HTML."""
    docs, site = Path(config["docs_dir"]), Path(config["site_dir"])
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}", ""]
    for section in config["nav"]:
        (title, below), *_ = section.items()
        lines += [f"## {title}", "", *(_line(docs, page) for page in _pages(below)), ""]
        for page in _pages(below):
            (site / page).parent.mkdir(parents=True, exist_ok=True)
            (site / page).write_bytes((docs / page).read_bytes())
    (site / "llms.txt").write_text("\n".join(lines), encoding="utf-8")


def _pages(below: Any) -> list[str]:
    """The pages of a part of the navigation, in order."""
    if isinstance(below, str):
        return [below]
    if isinstance(below, dict):
        below = below.values()
    return [page for one in below for page in _pages(one)]


def _line(docs: Path, page: str) -> str:
    """The link to a page, with its first sentence."""
    text = re.sub(r"\A---\n.*?\n---\n", "", (docs / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    title = re.search(r"^# (.+)$", text, re.MULTILINE)
    first = re.search(r"^(?![#`|<!\s-])(.+?[.:])(?:\s|$)", text, re.MULTILINE | re.DOTALL)
    said = " ".join(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", first[1]).split()) if first else ""
    return f"- [{title[1] if title else page}]({page})" + (f": {said}" if said else "")
