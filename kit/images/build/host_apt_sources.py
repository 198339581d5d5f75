"""The host's own apt sources for a suite: a machine that can install packages can then bootstrap."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

_APT = Path("/etc/apt")


def lines(suite: str, components: Iterable[str], *, root: Path = _APT) -> list[str]:
    """One-line entries (sources.list(5)) of the suite, its updates and its security updates; empty if there are none."""
    wanted = set(components)
    entries = []
    for options, uri, entry_suite, offered in _entries(root):
        if entry_suite in {suite, f"{suite}-updates", f"{suite}-security", f"{suite}/updates"}:
            common = [component for component in offered if component in wanted]
            if common:
                entries.append(" ".join(filter(None, ["deb", options, uri, entry_suite, *common])))
    return list(dict.fromkeys(entries))


def _entries(root: Path) -> Iterator[tuple[str, str, str, list[str]]]:
    """(options, URI, suite, components) of every enabled binary source."""
    for file in [root / "sources.list", *sorted((root / "sources.list.d").glob("*"))]:
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if file.suffix == ".sources":
            yield from _deb822(text)
        elif file.suffix == ".list":
            yield from _one_line(text)


def _one_line(text: str) -> Iterator[tuple[str, str, str, list[str]]]:
    for line in text.splitlines():
        found = re.match(r"deb\s+(\[[^]]*\]\s+)?(\S+)\s+(\S+)\s+(.+)", line.split("#")[0].strip())
        if found:
            yield (found[1] or "").strip(), found[2], found[3], found[4].split()


def _deb822(text: str) -> Iterator[tuple[str, str, str, list[str]]]:
    for stanza in re.split(r"\n\s*\n", text):
        fields = _fields(stanza)
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in {"no", "false"}:
            continue
        key = fields.get("signed-by", "").strip()
        # A key block inside the stanza has no one-line form. apt then uses the machine's trusted keys.
        options = f"[signed-by={','.join(key.split())}]" if key.startswith("/") else ""
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                yield options, uri, suite, fields.get("components", "").split()


def _fields(stanza: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    name = ""
    for line in stanza.splitlines():
        if line.startswith("#"):
            continue
        if line[:1].isspace():
            fields[name] = f"{fields.get(name, '')}\n{line.strip()}"
        elif ":" in line:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            fields[name] = value.strip()
    return fields
