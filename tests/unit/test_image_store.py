"""The store and its locks: who may be judged dead, what is cleaned, what is never seen half-written."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kit.errors import ImageError
from kit.files import cross_host_lock
from kit.files.owning_process import Owner
from kit.images import store, store_contents, store_notes
from tests.cluster.image_lab import wait_until


def _dead() -> Owner:
    """A process of this host that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return replace(Owner.current(), pid=process.pid, started=1)


def test_an_owner_survives_its_spelling_and_knows_whether_it_lives() -> None:
    me = Owner.current()
    assert Owner.parse(str(me)) == me
    assert me.alive() is True
    assert _dead().alive() is False
    assert replace(me, started=me.started + 1).alive() is False
    assert replace(me, boot="another0").alive() is False
    assert replace(me, host="elsewhere").alive() is None
    assert Owner.parse("") is None
    assert Owner.parse("a~b~c") is None


def test_the_second_waits_for_the_first(tmp_path: Path) -> None:
    lock = tmp_path / "x.lock"
    order: list[str] = []
    waited: list[str] = []

    def second() -> None:
        with cross_host_lock.hold(lock, on_wait=waited.append):
            order.append("second")

    with cross_host_lock.hold(lock):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.3)
        order.append("first")
    thread.join(timeout=5)
    assert order == ["first", "second"]
    assert waited == [f"process {os.getpid()} on {Owner.current().host}"]
    assert list(tmp_path.iterdir()) == []


def test_a_dead_holder_is_replaced_at_once(tmp_path: Path) -> None:
    lock = tmp_path / "x.lock"
    lock.write_text(f"{_dead()}\n")
    start = time.monotonic()
    with cross_host_lock.hold(lock):
        assert Owner.parse(lock.read_text()) == Owner.current()
    assert time.monotonic() - start < 1


@pytest.mark.parametrize(("age_s", "taken"), [(3600, True), (1, False)])
def test_a_holder_on_another_host_is_judged_by_its_heartbeat(tmp_path: Path, age_s: float, taken: bool) -> None:
    lock = tmp_path / "x.lock"
    lock.write_text(f"{replace(Owner.current(), host='elsewhere')}\n")
    os.utime(lock, (time.time() - age_s, time.time() - age_s))
    got = threading.Event()

    def take() -> None:
        with cross_host_lock.hold(lock):
            got.set()

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    assert got.wait(1.0) is taken
    lock.unlink(missing_ok=True)
    thread.join(timeout=5)


def test_a_lock_that_was_taken_over_is_not_released(tmp_path: Path) -> None:
    lock = tmp_path / "x.lock"
    with cross_host_lock.hold(lock):
        lock.unlink()
        lock.write_text("somebody else's")
    assert lock.read_text() == "somebody else's"


def test_a_file_system_without_links_has_locks_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    monkeypatch.setattr(cross_host_lock, "_HEARTBEAT_S", 0.05)
    lock, order = tmp_path / "x.lock", []

    def second() -> None:
        with cross_host_lock.hold(lock):
            order.append("second")

    with cross_host_lock.hold(lock):
        thread = threading.Thread(target=second)
        thread.start()
        os.utime(lock, (0, 0))
        wait_until(lambda: lock.stat().st_mtime > 0)  # the heartbeat, by which another host judges
        order.append("first")
    thread.join(timeout=5)
    assert order == ["first", "second"]
    assert list(tmp_path.iterdir()) == []
    with cross_host_lock.hold(lock):
        lock.write_text("somebody else's")
    assert lock.read_text() == "somebody else's"


def test_what_a_newer_kit_keeps_in_the_store_is_left_alone(tmp_path: Path) -> None:
    """Two versions of the kit on one store: neither knows all that the other writes."""
    place, project = tmp_path / "store", tmp_path / "project"
    store.prepare_store(place)
    kept = [place / "layers/sha256/ab", place / "sha256/README", place / "refs/.note", place / "index.json"]
    kept += [place / "sha256" / f"{'1' * 64}.sqsh.sig", place / "tmp" / "another form~of~owner"]
    for file in kept:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    (place / "locks/z.lock").write_text("an owner of another form")
    image = store.path(place, "1" * 64)
    image.write_bytes(b"x")
    image.with_suffix(".json").write_text('{"name": "theirs", "form": 2}')
    lock = project / "containers/theirs/image.lock"
    lock.parent.mkdir(parents=True)
    lock.write_text(
        f'schema = 2\nname = "theirs"\nsha256 = "{"1" * 64}"\nsize = 1\nnovel = "key"\n\n[more]\nkeys = 1\n'
    )
    store.register(place, lock)
    store.prepare_store(place)
    loose = store.path(place, "2" * 64)
    loose.write_bytes(b"x")
    done = store_contents.prune(place, tmp_path / "other", in_use=(), older_than_s=0, dry_run=False)
    assert [path for path, _ in done.gone] == [loose]
    assert [path for path in (*kept, image, place / "locks/z.lock") if not path.exists()] == []
    (row,) = [row for row in store_contents.rows(place, tmp_path / "other") if row.sha256 == "1" * 64]
    assert (row.name, row.present, row.locks) == ("theirs", True, (lock,))


def test_two_may_make_a_store_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process makes each folder just before. One of two imports at once failed: `File exists`."""
    real, made = Path.mkdir, list[str]()

    def second(folder: Path, *args: Any, **options: Any) -> None:
        if not folder.exists():
            real(folder)
            made.append(folder.name)
        real(folder, *args, **options)

    monkeypatch.setattr(Path, "mkdir", second)
    store.prepare_store(tmp_path / "store")
    assert made == ["store", "sha256", "tmp", "locks", "refs"]


def test_a_file_in_the_place_of_a_folder_of_the_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "refs").write_text("")
    with pytest.raises(ImageError, match="cannot be written: File exists"):
        store.prepare_store(tmp_path)


def test_leftovers_of_the_dead_go_and_those_of_the_living_stay(tmp_path: Path) -> None:
    store.prepare_store(tmp_path)
    foreign = replace(Owner.current(), host="elsewhere")
    names = {"dead": _dead(), "alive": Owner.current(), "foreign": foreign, "old": foreign}
    folders = {name: tmp_path / "tmp" / f"{owner}~{name}" for name, owner in names.items()}
    for folder in folders.values():
        folder.mkdir()
        (folder / "image.sqsh").write_text("half")
    os.utime(folders["old"], (0, 0))
    (tmp_path / "locks" / ".x.lock.1").write_text(f"{_dead()}\n")
    (tmp_path / "locks" / "x.lock").write_text(f"{_dead()}\n")
    (tmp_path / "locks" / "y.lock").write_text(f"{Owner.current()}\n")
    store.prepare_store(tmp_path)
    left = {name for name, folder in folders.items() if folder.exists()}
    assert left == {"alive", "foreign"}
    assert [path.name for path in (tmp_path / "locks").iterdir()] == ["y.lock"]


def test_a_published_image_is_readable_by_all_who_may_read_the_store(tmp_path: Path) -> None:
    umask = os.umask(0o077)
    try:
        place = tmp_path / "store"
        store.prepare_store(place)
        with store.workspace(place) as work:
            (work / "image.sqsh").write_bytes(b"content")
            image = store.publish(place, work / "image.sqsh", "0" * 64, {"name": "x"})
    finally:
        os.umask(umask)
    assert image == store.path(place, "0" * 64)
    assert image.read_bytes() == b"content"
    assert store.facts(place, "0" * 64) == {"name": "x"}
    assert list((place / "tmp").iterdir()) == []
    assert image.stat().st_mode & 0o777 == 0o644 & place.stat().st_mode | 0o400


def test_a_group_store_gives_its_mode_to_its_folders(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    store.prepare_store(tmp_path)
    assert {(tmp_path / name).stat().st_mode & 0o7777 for name in ("sha256", "tmp", "locks", "refs")} == {0o2770}


def test_registered_locks_are_found_as_long_as_they_exist(tmp_path: Path) -> None:
    store.prepare_store(tmp_path)
    lock = tmp_path / "image.lock"
    lock.write_text("")
    store.register(tmp_path, lock)
    store.register(tmp_path, lock)
    assert store_notes.read_notes(tmp_path) == store_notes.Notes(locks=(lock,))
    lock.unlink()
    assert store_notes.read_notes(tmp_path) == store_notes.Notes()
