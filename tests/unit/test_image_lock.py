"""image.lock: what it says, when it is written, what a difference is called; and verifying a file against it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kit import data_folders
from kit.errors import ConfigError, ImageError, LockError
from kit.images import check_against_lock, image_lock, store, store_contents
from kit.schema.image import ImageConfig, ImageLock, LockedBase, LockedTools, Packages, Squash
from tests.support import REPO


def make(**changes: object) -> ImageLock:
    base = {
        "name": "tiny",
        "sha256": "a" * 64,
        "size": 4096,
        "source": "build",
        "inputs": "b" * 64,
        "base": LockedBase(kind="bootstrap", reference="bookworm", digest=f"sha256:{'c' * 64}"),
        "squash": Squash(),
        "config": ImageConfig(env={"PATH": "/bin", "ODD": 'quote " and $X'}, labels={"a.b": "c"}),
        "tools": LockedTools(kit="1", mksquashfs="4.5.1", engine="20", image_id="sha256:1"),
        "packages": Packages(pip={"numpy": "2.1.0"}, apt={"bash": "5.2"}),
    }
    return ImageLock.model_validate(base | changes)


def test_what_a_merge_leaves_names_no_image(tmp_path: Path) -> None:
    """Taken for a lock, it would let prune remove the image of one of the two sides."""
    path = tmp_path / "image.lock"
    image_lock.write_lock(path, make())
    assert image_lock.head(path) == image_lock.Head(name="tiny", sha256="a" * 64, size=4096)
    text = path.read_text()
    line = f'sha256 = "{"a" * 64}"'
    path.write_text(text.replace(line, f"<<<<<<< a\n{line}\n=======\n{line.replace('a' * 64, 'd' * 64)}\n>>>>>>> b"))
    with pytest.raises(ConfigError):
        image_lock.head(path)
    path.write_text(text.replace(line, f"  {line}  # by hand"))
    assert image_lock.head(path).sha256 == "a" * 64


def stored(root: Path, *, used: int = 5000, size: int = 8192) -> ImageLock:
    """A lock and, in the store, a file that begins as a squashfs image does."""
    content = bytearray(os.urandom(size))
    content[:4], content[40:48] = b"hsqs", used.to_bytes(8, "little")
    store.prepare_store(root)
    (root / "image").write_bytes(content)
    made = make(sha256=store.digest_of(root / "image"), size=size)
    (root / "image").rename(store.path(root, made.sha256))
    return made


def test_a_lock_reads_back_as_it_was_written(tmp_path: Path) -> None:
    assert image_lock.write_lock(tmp_path / "image.lock", make())
    assert image_lock.read_lock(tmp_path / "image.lock") == make()
    assert "schema = 1\n" in (tmp_path / "image.lock").read_text()


def test_ids_that_no_two_builds_share_are_no_reason_to_write(tmp_path: Path) -> None:
    path = tmp_path / "image.lock"
    image_lock.write_lock(path, make())
    before = path.read_bytes()
    tools = LockedTools(kit="2", mksquashfs="4.5.1", engine="21", image_id="sha256:2")
    assert image_lock.write_lock(path, make(tools=tools)) is False
    assert path.read_bytes() == before
    assert image_lock.write_lock(path, make(inputs="d" * 64))


def test_differences_are_named_by_key_causes_first() -> None:
    new = make(sha256="d" * 64, packages=Packages(pip={"numpy": "2.2.0", "six": "1"}, apt={}))
    assert list(image_lock.differences(make(), new)) == [
        "packages.apt.bash: 5.2 -> (nothing)",
        "packages.pip.numpy: 2.1.0 -> 2.2.0",
        "packages.pip.six: (nothing) -> 1",
        f"sha256: {'a' * 64} -> {'d' * 64}",
    ]
    assert list(image_lock.differences(make(), make())) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [("schema = 1", "schema = 2", "schema"), ('sha256 = "a', 'sha256 = "g', "sha256"), ("size", "sizes", "size")],
)
def test_a_damaged_or_newer_lock_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "image.lock"
    image_lock.write_lock(path, make())
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ConfigError, match=said):
        image_lock.read_lock(path)


def test_a_whole_image_is_right(tmp_path: Path) -> None:
    made = stored(tmp_path)
    assert check_against_lock.check(made, tmp_path, full=False) == store.path(tmp_path, made.sha256)
    assert check_against_lock.check(made, tmp_path, full=True) == store.path(tmp_path, made.sha256)


def test_a_missing_image_names_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(LockError) as caught:
        check_against_lock.check(make(), tmp_path, full=False)
    assert caught.value.hint == f"run 'kit build-image tiny --store {tmp_path}'"
    with pytest.raises(LockError) as caught:
        check_against_lock.check(make(source="docker://reg#a b"), tmp_path, full=False)
    assert caught.value.hint == f"run 'kit import-image 'docker://reg#a b' --name tiny --store {tmp_path}'"


def test_a_cut_off_image_is_found_without_reading_it(tmp_path: Path) -> None:
    made = stored(tmp_path)
    os.truncate(store.path(tmp_path, made.sha256), 4096)
    with pytest.raises(LockError, match="cut off: it has 4096 of its 5000 bytes"):
        check_against_lock.check(made, tmp_path, full=False)


@pytest.mark.parametrize("full", [False, True])
def test_a_flipped_bit_is_found(tmp_path: Path, full: bool) -> None:
    made = stored(tmp_path)
    path = store.path(tmp_path, made.sha256)
    content = bytearray(path.read_bytes())
    content[6000] ^= 1
    path.write_bytes(content)
    with pytest.raises(LockError, match="damaged"):
        check_against_lock.check(made, tmp_path, full=full)


def test_a_cheap_check_takes_milliseconds(tmp_path: Path) -> None:
    made = stored(tmp_path)
    os.truncate(store.path(tmp_path, made.sha256), 10**10)  # a sparse file: the time must not depend on the size
    start = time.perf_counter()
    with pytest.raises(LockError, match="has 10000000000 bytes"):
        check_against_lock.check(made, tmp_path, full=False)
    assert time.perf_counter() - start < 0.02


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "project/containers").mkdir(parents=True)
    return tmp_path / "project"


def _prune(root: Path, project: Path, *, in_use: frozenset[str] = frozenset(), older_than_s: float = 0) -> set[str]:
    done = store_contents.prune(root, project, in_use=in_use, older_than_s=older_than_s, dry_run=False)
    return {path.stem for path, _ in done.gone}


def test_prune_keeps_what_a_lock_a_job_or_its_age_protects(tmp_path: Path, project: Path) -> None:
    root = tmp_path / "store"
    locked, other, used, loose, young = (stored(root) for _ in range(5))
    (project / "containers/tiny").mkdir()
    image_lock.write_lock(project / "containers/tiny/image.lock", locked)
    elsewhere = tmp_path / "elsewhere/image.lock"
    image_lock.write_lock(elsewhere, other)
    store.register(root, elsewhere)
    for made in (locked, other, used, loose):
        os.utime(store.path(root, made.sha256), (0, 0))
    assert _prune(root, project, in_use=frozenset({used.sha256}), older_than_s=60) == {loose.sha256}
    assert {path.stem for path in (root / "sha256").glob("*.sqsh")} == {
        made.sha256 for made in (locked, other, used, young)
    }
    rows = {row.sha256: row for row in store_contents.rows(root, project)}
    assert rows[locked.sha256].locks == (project / "containers/tiny/image.lock",)
    assert rows[used.sha256].locks == ()


def test_an_image_with_two_names_has_two_rows(tmp_path: Path, project: Path) -> None:
    root = tmp_path / "store"
    made = stored(root)
    for name in ("one", "other", "copy-of-one"):
        (project / "containers" / name).mkdir()
        named = made.model_copy(update={"name": "one" if name.endswith("one") else name})
        image_lock.write_lock(project / "containers" / name / "image.lock", named)
    rows = store_contents.rows(root, project)
    assert [(row.name, len(row.locks)) for row in rows if row.sha256 == made.sha256] == [("one", 2), ("other", 1)]


def test_prune_removes_nothing_while_a_lock_cannot_be_read(tmp_path: Path, project: Path) -> None:
    root = tmp_path / "store"
    made = stored(root)
    (project / "containers/tiny").mkdir()
    (project / "containers/tiny/image.lock").write_text("schema = 99\n")
    with pytest.raises(ImageError, match="cannot be read"):
        _prune(root, project)
    assert store.path(root, made.sha256).is_file()


def test_the_head_of_a_lock_names_its_bytes(tmp_path: Path) -> None:
    for name in ("train-cpu", "frameworks-cpu"):
        place = REPO / "containers" / name / "image.lock"
        whole = image_lock.read_lock(place)
        assert image_lock.head(place) == image_lock.Head(name=whole.name, sha256=whole.sha256, size=whole.size)
    damaged = tmp_path / "image.lock"
    for text in ("", "schema = 1\n", 'name = "x"\nsize = 1\nsha256 = "0"\n', "name = [\n"):
        damaged.write_text(text)
        with pytest.raises(ConfigError):
            image_lock.head(damaged)


def test_a_lock_is_looked_for_in_the_project_then_the_users_folder_then_the_kits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    project, own = tmp_path / "project", data_folders.user_config()
    assert own.is_relative_to(tmp_path)
    packaged = data_folders.packaged() / "containers" / "train-cpu" / "image.lock"
    assert image_lock.find("nothing-of-this-name", project=project) is None
    assert image_lock.find("train-cpu", project=project) == packaged.resolve()
    for root in (own, project):
        path = root / "containers" / "train-cpu" / "image.lock"
        path.parent.mkdir(parents=True)
        path.touch()
        assert image_lock.find("train-cpu", project=project) == path.resolve()


def test_the_head_of_a_lock_is_all_that_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "image.lock"
    image_lock.write_lock(path, make())

    def whole(path: Path) -> ImageLock:
        raise AssertionError(path)

    monkeypatch.setattr(image_lock, "read_lock", whole)
    assert image_lock.head(path).size == 4096
    # Two names are none, and the lock is read whole to say what is wrong with it.
    path.write_text('name = "other"\n' + path.read_text())
    with pytest.raises(AssertionError):
        image_lock.head(path)


def test_a_lock_is_written_beside_its_image_and_that_of_the_kits_own_image_in_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new lock in an installed kit is lost at its update; in a clone elsewhere, it is in the way of the next git pull."""
    monkeypatch.setattr(data_folders, "packaged", lambda: tmp_path / "kit")
    project = tmp_path / "project"
    for root, expected in ((tmp_path / "kit", project), (tmp_path / "user", tmp_path / "user"), (project, project)):
        entry = data_folders.Entry(name="tiny", path=root / "containers/tiny/image.toml", root=root)
        assert image_lock.place(entry, project=project) == expected / "containers/tiny/image.lock"


def test_the_kits_lock_of_an_image_is_not_that_of_the_projects_own_image_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kit_lock, own = tmp_path / "kit/containers/tiny/image.lock", tmp_path / "project/containers/tiny"
    monkeypatch.setattr(data_folders, "packaged", lambda: tmp_path / "kit")
    image_lock.write_lock(kit_lock, make())
    assert image_lock.find("tiny", project=tmp_path / "project") == kit_lock
    own.mkdir(parents=True)
    (own / "image.toml").touch()
    assert image_lock.find("tiny", project=tmp_path / "project") is None
    image_lock.write_lock(own / "image.lock", make())
    assert image_lock.find("tiny", project=tmp_path / "project") == own / "image.lock"


def test_a_lock_makes_its_folder_and_takes_the_place_of_an_older_one(tmp_path: Path) -> None:
    path = tmp_path / "containers" / "tiny" / "image.lock"
    assert image_lock.write_lock(path, make())
    assert image_lock.write_lock(path, make(size=8192))
    assert image_lock.read_lock(path).size == 8192


def test_a_name_and_inputs_are_no_difference_of_bytes() -> None:
    assert not [*image_lock.differences(make(), make(name="other", inputs="d" * 64))]
