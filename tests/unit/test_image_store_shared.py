"""Files that other users put into a shared store: notes, locks, and images that this user may not remove. C15."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit import data_folders
from kit.errors import ImageError
from kit.files import cross_host_lock
from kit.images import image_lock, squash_and_lock, store, store_contents, store_safety
from kit.schema.image import Squash
from kit.ssh import answers, shell_program
from tests.support import make_lock
from tests.unit.test_image_lock import stored
from tests.unit.test_remote import sh

NOBODY = 65534

STRANGE: dict[str, Callable[[Path], object]] = {
    "not UTF-8": lambda path: path.write_bytes(b"\xff\xfe"),
    "a FIFO": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": lambda path: path.mkdir(),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "no path": lambda path: path.write_text("relative\n"),
    "a path with a zero byte": lambda path: path.write_text("/a\0b\n"),
    "too large": lambda path: path.write_text("/" + "x" * 100_000),
    "a log of the kernel": lambda path: path.symlink_to("/proc/kmsg"),
}


@pytest.fixture(autouse=True)
def only_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    """No locks of this user or of the kit."""
    monkeypatch.setattr(data_folders, "roots", lambda project: [project])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A store with one image that nobody names."""
    store.prepare_store(tmp_path / "store")
    store.path(tmp_path / "store", "1" * 64).write_bytes(b"x")
    return tmp_path / "store"


def prune(place: Path) -> store_contents.Pruned:
    return store_contents.prune(place, place.parent, in_use=(), older_than_s=0, dry_run=False)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", STRANGE)
def test_c15_a_note_that_no_kit_wrote_stops_nothing_and_is_named(place: Path, kind: str) -> None:
    note = place / "refs" / "00aa"
    STRANGE[kind](note)
    rows = [row.sha256 for row in store_contents.rows(place, place.parent)]
    done = prune(place)
    assert rows == ["1" * 64]
    assert [path.stem for path, _ in done.gone] == ["1" * 64]
    assert [path for path, _ in done.strange] == [note]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", [*STRANGE, "a link to itself"])
def test_c15_a_lock_that_no_kit_wrote_is_taken_over_when_it_has_no_heartbeat(place: Path, kind: str) -> None:
    """It names no owner who could be alive."""
    lock = store.lock_file(place, "x")
    make = STRANGE.get(kind, lock.symlink_to)
    make(lock)
    os.utime(lock, (0, 0), follow_symlinks=False)
    store.prepare_store(place)
    with cross_host_lock.hold(lock):
        assert lock.is_file()
    assert not os.path.lexists(lock)


@pytest.mark.timeout(60)
def test_c15_a_young_lock_that_no_kit_wrote_is_waited_for(place: Path) -> None:
    lock = store.lock_file(place, "x")
    os.mkfifo(lock)
    told, held = threading.Event(), list[bool]()

    def wait() -> None:
        with cross_host_lock.hold(lock, on_wait=lambda _: told.set()):
            held.append(True)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    assert told.wait(30)
    assert held == []
    os.utime(lock, (0, 0))
    waiting.join(30)
    assert held == [True]


# ---- two users ----


@pytest.fixture
def shared() -> Iterator[Path]:
    """A store with the modes of docs/guides/shared-store.md, below folders that every user can pass, with one image of root."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        place = Path(name) / "store"
        place.mkdir()
        place.chmod(0o3777)
        store.prepare_store(place)
        store.path(place, "1" * 64).write_bytes(b"x")
        yield place


@contextlib.contextmanager
def nobody() -> Iterator[None]:
    """Another user for the block: without root's capabilities, the kernel checks each file's mode."""
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_c15_a_prune_goes_on_after_the_image_of_another_user_and_names_it(shared: Path) -> None:
    with nobody():
        own = store.path(shared, "2" * 64)
        own.write_bytes(b"yy")
        done = prune(shared)
    assert done.gone == ((own, 2),)
    assert done.refused == ((store.path(shared, "1" * 64), "belongs to root (0): Operation not permitted"),)


@pytest.mark.parametrize("hidden", ["the note", "the folder of the lock", "refs"])
def test_c15_nothing_is_pruned_while_a_lock_cannot_be_read(shared: Path, hidden: str) -> None:
    """Its image could be any: a home folder is closed on most systems."""
    lock = shared.parent / "home" / image_lock.FILE
    image_lock.write_lock(lock, make_lock("theirs"))
    store.register(shared, lock)
    (note,) = (shared / "refs").iterdir()
    named = {"the note": note, "the folder of the lock": lock.parent, "refs": shared / "refs"}[hidden]
    named.chmod(0o700 if named.is_dir() else 0o600)
    with nobody():
        rows = [row.sha256 for row in store_contents.rows(shared, shared.parent / "other")]
        with pytest.raises(ImageError, match="you may not read it, so nothing was removed") as caught:
            prune(shared)
    assert rows == ["1" * 64]
    assert str(lock if hidden == "the folder of the lock" else named) in caught.value.message


def test_c15_a_note_can_be_read_by_all_whatever_the_umask(shared: Path) -> None:
    before = os.umask(0o077)
    try:
        store.register(shared, shared / image_lock.FILE)
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (shared / "refs").iterdir()] == [0o644]


def test_c15_the_doctor_names_what_is_no_note(place: Path) -> None:
    note = place / "refs" / "00aa"
    os.mkfifo(note)
    assert f"{note}: no note of the kit (not a regular file): remove it" in [*store_safety.problems(place)]


# ---- bytes of a stored image that are not those of its lock, C16 ----


@pytest.fixture
def locked(place: Path) -> squash_and_lock.Target:
    """An image in the store, and its lock."""
    lock = stored(place)
    path = place.parent / "containers" / lock.name / image_lock.FILE
    image_lock.write_lock(path, lock)
    return squash_and_lock.Target(
        name=lock.name, store=place, lock_file=path, source="build", inputs=lock.inputs, squash=Squash()
    )


def test_c16_wrong_bytes_in_the_store_are_made_again(locked: squash_and_lock.Target, place: Path) -> None:
    """`kit import-image` said that nothing had changed, for ever, and `kit submit` said to run it."""
    assert locked.current
    image = store.path(place, locked.current.sha256)
    assert (found := squash_and_lock.unchanged(locked)) and found.image == image
    content = bytearray(image.read_bytes())
    content[-1] ^= 1
    image.write_bytes(content)
    assert squash_and_lock.unchanged(locked) is None
    with store.workspace(place) as work:
        content[-1] ^= 1
        (work / "image.sqsh").write_bytes(content)
        store.publish(place, work / "image.sqsh", locked.current.sha256, {})
    assert squash_and_lock.unchanged(locked)


def test_c16_a_file_that_this_user_may_not_replace_is_named_with_its_owner(shared: Path) -> None:
    with nobody(), store.workspace(shared) as work:
        (work / "image.sqsh").write_bytes(b"y")
        with pytest.raises(ImageError, match=r"belongs to root \(0\), and you may not replace it") as caught:
            store.publish(shared, work / "image.sqsh", "1" * 64, {})
    assert caught.value.hint == f"let root remove {store.path(shared, '1' * 64)}"


@pytest.mark.parametrize("name", ["tmp", "refs", "locks"])
def test_nothing_is_removed_where_a_link_in_place_of_a_folder_of_the_store_leads(tmp_path: Path, name: str) -> None:
    """Who builds first owns `tmp`, and can make it a link: `kit prune-images` removed old folders of the next user there."""
    own = tmp_path / "own"
    (own / "thesis").mkdir(parents=True)
    (own / "thesis/chapter.tex").write_text("three years\n")
    os.utime(own / "thesis", (0, 0))
    place = tmp_path / "store"
    place.mkdir()
    (place / name).symlink_to(own)
    assert store.clean(place) == []
    if os.geteuid() == 0:
        os.chown(place / name, NOBODY, NOBODY, follow_symlinks=False)
        with pytest.raises(ImageError, match=f"{name} is a link that nobody .65534. has made: remove it"):
            store.prepare_store(place)
    assert (own / "thesis/chapter.tex").read_text() == "three years\n"


def test_a_link_of_the_store_owners_own_may_lead_to_another_disk(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "store").mkdir()
    (tmp_path / "store/sha256").symlink_to(tmp_path / "disk")
    store.prepare_store(tmp_path / "store")
    assert (tmp_path / "store/tmp").is_dir()


# ---- the same store on a cluster over ssh ----


def send(place: Path, folder: Path, content: bytes) -> answers.Reply:
    sha256 = hashlib.sha256(content).hexdigest()
    constants = {"RUNS": folder / "runs", "STORE": place, "SHA": sha256, "SIZE": len(content), "FROM": 0}
    text = shell_program.text("image", {**constants, "BYTES": len(content)}, mark="mark")
    return sh(text, folder, data=content)


def test_an_image_over_ssh_is_written_into_a_folder_of_the_users_own(tmp_path: Path) -> None:
    """The name of the folder for what has arrived is known: a colleague made it first, with a link to a file of this user's."""
    place = tmp_path / "store"
    store.prepare_store(place)
    assert send(place, tmp_path, b"image").codes["result"] == 0
    assert store.path(place, hashlib.sha256(b"image").hexdigest()).read_bytes() == b"image"
    kept = tmp_path / "bashrc"
    kept.write_text("alias\n")
    folder = place / "tmp" / f"ssh-{os.getuid()}-{hashlib.sha256(b'other').hexdigest()}"
    folder.mkdir()
    (folder / "part").symlink_to(kept)
    folder.chmod(0o777)
    reply = send(place, tmp_path, b"other")
    assert (reply.codes["result"], "others may have put files there" in reply.stderr) == (1, True)
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    reply = send(place, tmp_path, b"other")
    assert (reply.codes["result"], "is a link" in reply.stderr) == (1, True)
    assert kept.read_text() == "alias\n"


@pytest.mark.parametrize("squat", ["open", "link"])
def test_c11_a_store_of_snapshots_on_a_login_node_that_others_may_write_is_refused(tmp_path: Path, squat: str) -> None:
    """Its trees could have files more than their listings, as in a folder of runs on this machine."""
    made = tmp_path / "runs" / f".snapshots-{os.getuid()}"
    tree = made / "trees" / ("0" * 64)
    tree.mkdir(parents=True)
    (tree / "listing").touch()
    constants = {"RUNS": tmp_path / "runs", "STORE": tmp_path / "store", "TREE": "0" * 64}
    have = shell_program.text("have", {**constants, "ARGV": shell_program.Words(("true",))}, mark="mark")
    assert sh(have, tmp_path).texts["tree"] == "there"
    if squat == "open":
        made.chmod(0o770)
    else:
        made.rename(tmp_path / "elsewhere")
        made.symlink_to(tmp_path / "elsewhere")
    assert sh(have, tmp_path).texts["tree"] == ""
    more = {"PARTIAL": ".partial-ssh-1", "OBJECTS": 0, "TREE_BYTES": 0, "TREE_SUM": ""}
    reply = sh(shell_program.text("snapshot", {**constants, **more}, mark="mark"), tmp_path)
    assert (reply.codes["result"], str(made) in reply.stderr) == (1, True)
    assert not (made / "objects").exists()
