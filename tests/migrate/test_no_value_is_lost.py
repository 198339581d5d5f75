"""Nothing of a script is lost: each byte belongs to one entry, and each value is in job.toml or named in the report."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.migrate.read_script import read_script
from kit.migrate.report import Migration
from tests.migrate.forms import FORMS, Form

pytest.importorskip("tree_sitter_bash", reason="the extra 'migrate' is not installed")

# Between two statements.
_BETWEEN = re.compile(rb"[\s;&]*")
# A number, or a word: what somebody could have written otherwise.
_VALUE = re.compile(r"[0-9]+|[A-Za-z_][A-Za-z_]+")


def _write(folder: Path, form: Form) -> Path:
    for name, text in form.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder / "job.sbatch"


@pytest.mark.parametrize("name", FORMS)
def test_each_byte_belongs_to_one_entry(name: str, tmp_path: Path) -> None:
    form = FORMS[name]
    script, text = _write(tmp_path, form), form.script.encode()
    place = 0
    for begin, end in (entry.span for entry in read_script(script, form.script).entries if not entry.file):
        assert begin >= place, text[begin:end]
        assert _BETWEEN.fullmatch(text[place:begin]), text[place:begin]
        place = end
    assert _BETWEEN.fullmatch(text[place:])


def _said(report: Migration) -> tuple[object, ...]:
    """What a report says apart from the lines that it shows. A line that is left out, or not read, has an entry of its own."""
    places = [
        (place.kind, place.what, entry.text if place.kind in ("out", "unread") else "")
        for entry in report.entries
        for place in entry.places
    ]
    return report.outcome, report.job, report.refused, report.open, report.next, places


def _changed(form: Form) -> Iterator[tuple[str, str]]:
    """The script with one value changed, for each value outside of comments, and the line with the change."""
    for found in _VALUE.finditer(form.script):
        begin = form.script.rfind("\n", 0, found.start()) + 1
        before = form.script[begin : found.start()]
        if before.lstrip().startswith("#") and not before.startswith("#SBATCH "):
            continue
        other = str(int(found[0]) + 1) if found[0].isdigit() else f"{found[0]}x"
        changed = form.script[: found.start()] + other + form.script[found.end() :]
        yield changed, changed[begin:].partition("\n")[0]


@pytest.mark.parametrize("name", [name for name, form in FORMS.items() if form.outcome != "refused"])
def test_no_value_is_dropped_without_its_name(name: str, tmp_path: Path) -> None:
    """Another value anywhere in the script gives another job, or another word of the report."""
    script = _write(tmp_path, FORMS[name])
    said = _said(read_script(script, FORMS[name].script))
    lost = [line for text, line in _changed(FORMS[name]) if _said(read_script(script, text)) == said]
    # A secret's value is written nowhere.
    assert lost == (["export HF_TOKEN=abcdefx"] if name == "secret" else [])
