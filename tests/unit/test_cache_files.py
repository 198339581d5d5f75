"""Caches of one file each: named after a path, private, and removed when nothing has written them for long."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kit.record import cache_files

_DAY_S = 24 * 3600


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_a_file_is_named_after_its_kind_and_its_path() -> None:
    one, other = cache_files.place("runs", Path("/a")), cache_files.place("runs", Path("/b"))
    assert one != other
    assert one == cache_files.place("runs", "/a")
    assert one.name.startswith("runs-")
    assert cache_files.place("runs", b"/\xff".decode(errors="surrogateescape")).suffix == ".json"


def test_a_new_file_removes_those_of_its_kind_that_nobody_wrote_for_long() -> None:
    gone, recent, other_kind = (
        cache_files.place(kind, path) for kind, path in (("runs", "/gone"), ("runs", "/here"), ("results", "/gone"))
    )
    for path in (gone, recent, other_kind):
        cache_files.write(path, "{}")
    foreign = gone.parent / "runs-notes.txt"
    foreign.write_text("")
    now = time.time()
    for path in (gone, other_kind, foreign):
        os.utime(path, (now - 91 * _DAY_S,) * 2)
    os.utime(recent, (now - 80 * _DAY_S,) * 2)
    cache_files.write(recent, "[]")
    assert gone.exists(), "only a new file looks at the others"
    cache_files.write(cache_files.place("runs", "/new"), "{}")
    assert not gone.exists()
    assert recent.read_text() == "[]"
    assert other_kind.exists()
    assert foreign.exists()
    assert recent.stat().st_mode & 0o777 == 0o600


def test_the_number_of_files_of_a_kind_has_a_limit(_cache: Path) -> None:
    now = time.time()
    other_kind = cache_files.place("results", "/sweep")
    cache_files.write(other_kind, "{}")
    os.utime(other_kind, (now - _DAY_S,) * 2)
    for number in range(250):
        path = cache_files.place("runs", f"/runs-{number}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
        os.utime(path, (now - _DAY_S + number,) * 2)
    cache_files.write(cache_files.place("runs", "/new"), "{}")
    assert len(list((_cache / "kit").glob("runs-*.json"))) == 200
    assert cache_files.place("runs", "/new").exists()
    assert cache_files.place("runs", "/runs-249").exists(), "the last ones stay"
    assert not cache_files.place("runs", "/runs-0").exists()
    assert other_kind.exists()


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "kit").write_text("a file where the folder should be")
    cache_files.write(cache_files.place("runs", "/a"), "{}")
    assert (tmp_path / "kit").read_text() == "a file where the folder should be"
