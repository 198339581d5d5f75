"""Temporary names: found again by whoever comes next, and no part of an image."""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from kit.files import temporary_names
from kit.files.owning_process import Owner
from kit.images import image_lock, store
from kit.images.build import bootstrap_base, build_context, requirements_lock, wheels
from kit.schema.image import Bootstrap, ImageLock, PythonPackages
from tests.support import REPO


def left_by_a_dead_one(path: Path) -> Path:
    process = subprocess.Popen(["true"])
    process.wait()
    owner = replace(Owner.current(), pid=process.pid, started=1)
    return path.with_name(f".{path.name}~{owner}~01234567")


def test_only_the_dead_lose_their_names(tmp_path: Path) -> None:
    dead, other = left_by_a_dead_one(tmp_path / "a.b"), left_by_a_dead_one(tmp_path / "c")
    dead.mkdir()
    (dead / "inner").write_text("")
    foreign = tmp_path / f".a.b~{replace(Owner.current(), host='else.where')}~01234567"
    for file in (other, foreign, tmp_path / ".a.b~x~y", tmp_path / "a.b"):
        file.write_text("")
    with temporary_names.beside(tmp_path / "a.b") as mine:
        mine.write_text("")
        names = {path.name for path in tmp_path.iterdir()}
        assert names == {mine.name, other.name, foreign.name, ".a.b~x~y", "a.b"}
        assert all(temporary_names.is_temporary(path.name) for path in (mine, other, foreign))
    assert not mine.exists()
    temporary_names.sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {foreign.name, ".a.b~x~y", "a.b"}
    assert not temporary_names.is_temporary(".a.b~x~y")


def test_what_a_killed_kit_left_in_an_images_folder_changes_no_image(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("")
    left_by_a_dead_one(tmp_path / "image.lock").write_text("half a lock")
    assert [file.name for file in build_context.scan(tmp_path)] == ["Dockerfile"]


def test_the_next_lock_and_the_next_note_remove_what_a_killed_one_left(tmp_path: Path) -> None:
    whole = image_lock.read_lock(REPO / "containers/train-cpu/image.lock")
    left = left_by_a_dead_one(tmp_path / "image.lock")
    left.write_text("half a lock")
    assert image_lock.write_lock(tmp_path / "image.lock", ImageLock.model_validate(whole.model_dump()))
    assert [path.name for path in tmp_path.iterdir()] == ["image.lock"]
    place = tmp_path / "store"
    store.prepare_store(place)
    left_by_a_dead_one(place / "refs/0123").write_text("half")
    store.clean(place)
    assert list((place / "refs").iterdir()) == []


def test_pip_works_where_the_next_one_cleans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed pip leaves its build folders: they lie in the kit's own cache and not in /tmp."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cache = tmp_path / "cache/kit/wheels"
    cache.mkdir(parents=True)
    (left_by_a_dead_one(cache / "pins")).mkdir()
    (tmp_path / "requirements.txt").write_text("")
    requirements_lock.refresh(PythonPackages(), tmp_path, {}, locked=False, on_line=lambda _: None)
    assert list(cache.iterdir()) == []
    said = tmp_path / "tmpdir"
    monkeypatch.setattr(wheels, "pip", lambda: ["sh", "-c", f'echo "$TMPDIR" > {said}; exit 0'])
    (tmp_path / "requirements.lock").write_text("")
    wheels.fetch(PythonPackages(), tmp_path, fresh=False, on_line=lambda _: None)
    assert Path(said.read_text().strip()).parent == cache
    assert len(list(cache.iterdir())) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's mmdebstrap works in /tmp itself")
def test_apts_own_user_may_enter_where_mmdebstrap_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else apt works as root, and the base's tar has other owners and another digest."""
    program, said = tmp_path / "bin/mmdebstrap", tmp_path / "said"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nstat -c %a "$TMPDIR" > {said}\necho "$TMPDIR" >> {said}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    bootstrap_base.make_tar(
        Bootstrap(suite="bookworm", mirror="http://x/"), tmp_path / "base.tar", lambda _: None, versions={}
    )
    mode, place = said.read_text().split()
    assert mode == "711"
    assert Path(place).parent == tmp_path
    assert not Path(place).exists()
