"""kit_memory_files: a step in memory is there whole or not at all, and takes the memory of the one that it replaces."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import kit_memory_files
import pytest
from kit_memory_files import DamagedError, MemoryFiles

PART = "rank-3"


def keep(files: MemoryFiles, step: int, content: bytes, part: str = PART) -> None:
    draft = files.write(part, len(content))
    draft.payload[:] = content
    draft.commit(step, kit_memory_files.sha256(memoryview(content)))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_step_is_read_as_it_was_written(tmp_path: Path) -> None:
    files = MemoryFiles(str(tmp_path))
    keep(files, 5, b"five")
    assert files.steps() == {PART: [5]}
    assert bytes(files.read_part(PART, 5)) == b"five"
    assert files.digest(PART, 5) == kit_memory_files.sha256(memoryview(b"five"))
    files.check(PART, 5)
    # Another process of the node, such as the next start of the rank.
    assert bytes(MemoryFiles(str(tmp_path)).read_part(PART, 5)) == b"five"


def test_the_newest_two_steps_stay_and_a_write_takes_the_memory_of_the_oldest(tmp_path: Path) -> None:
    files = MemoryFiles(str(tmp_path))
    for step in (1, 2):
        keep(files, step, bytes([step]) * 10)
    oldest = (tmp_path / f"{PART}@1").stat().st_ino
    keep(files, 3, b"3" * 10)
    assert files.steps() == {PART: [2, 3]}
    assert (tmp_path / f"{PART}@3").stat().st_ino == oldest
    assert files.held() == sum(path.stat().st_size for path in tmp_path.iterdir())


def test_a_writer_that_dies_leaves_the_steps_before_and_the_next_takes_its_draft(tmp_path: Path) -> None:
    files = MemoryFiles(str(tmp_path))
    keep(files, 1, b"1" * 10)
    files.write(PART, 10).payload[:3] = b"cut"
    assert names(tmp_path) == {f"{PART}@1", f"{PART}@writing"}
    again = MemoryFiles(str(tmp_path))
    assert again.steps() == {PART: [1]}
    left = (tmp_path / f"{PART}@writing").stat().st_ino
    keep(again, 2, b"2" * 20)
    assert bytes(again.read_part(PART, 2)) == b"2" * 20
    assert (tmp_path / f"{PART}@2").stat().st_ino == left


def test_a_changed_byte_and_a_cut_file_are_damage(tmp_path: Path) -> None:
    files = MemoryFiles(str(tmp_path))
    keep(files, 7, b"seven")
    path = tmp_path / f"{PART}@7"
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"!")
    with pytest.raises(DamagedError, match=r"step 7 .* differs"):
        files.check(PART, 7)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(DamagedError, match="is cut"):
        files.read_part(PART, 7)
    os.truncate(path, 3)
    with pytest.raises(DamagedError, match="has 3 bytes"):
        files.read_part(PART, 7)


def test_a_digest_that_is_not_known_yet_is_none_until_it_is_noted(tmp_path: Path) -> None:
    files = MemoryFiles(str(tmp_path))
    draft = files.write("shared", 4)
    draft.payload[:] = b"same"
    draft.commit(1)
    assert files.digest("shared", 1) is None
    files.check("shared", 1)
    files.note_digest("shared", 1, kit_memory_files.sha256(memoryview(b"same")))
    files.check("shared", 1)
    assert files.digest("shared", 1) == kit_memory_files.sha256(memoryview(b"same"))
    assert bytes(files.read_part("shared", 1)) == b"same"


def test_later_steps_and_parts_of_other_nodes_are_forgotten(tmp_path: Path) -> None:
    files = MemoryFiles(str(tmp_path))
    for part in ("rank-0", "rank-1"):
        for step in (4, 5):
            keep(files, step, b"x", part)
    (tmp_path / "no-part").touch()
    files.forget(after=4, keep={"rank-0"})
    assert files.steps() == {"rank-0": [4]}
    assert names(tmp_path) == {"rank-0@4", "no-part"}


def test_the_folder_is_one_of_the_job_its_start_and_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert kit_memory_files.folder() is None
    for name, value in (("SLURM_JOB_ID", "7"), ("SLURM_RESTART_COUNT", "2"), ("SLURMD_NODENAME", "n1")):
        monkeypatch.setenv(name, value)
    assert kit_memory_files.folder() == f"/dev/shm/kit-memory-{os.geteuid()}-7.2-n1"


def _link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _give(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    os.chown(path, 65534, 65534)


@pytest.mark.parametrize("squat", [_link, _give, lambda path: path.chmod(0o770), lambda path: path.chmod(0o707)])
def test_c11_a_folder_that_another_user_may_have_filled_is_not_used(
    tmp_path: Path, squat: Callable[[Path], None]
) -> None:
    folder = tmp_path / "memory"
    folder.mkdir(mode=0o700)
    files = MemoryFiles(str(folder))
    keep(files, 5, b"five")
    assert files.foreign() is None
    squat(folder)
    assert str(folder) in str(files.foreign())
    assert files.steps() == {}
    refused = [
        lambda: files.read_part(PART, 5),
        lambda: files.note_digest(PART, 5, bytes(32)),
        lambda: files.write(PART, 4),
        files.free,
    ]
    for one in refused:
        with pytest.raises(PermissionError, match="uid"):
            one()
    files.remove(PART, 5)
    files.forget(after=-1, keep=())
    assert names(folder) == {f"{PART}@5"}


def test_c11_the_owner_of_a_foreign_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, own = MemoryFiles(str(tmp_path)), os.geteuid()
    monkeypatch.setattr("os.geteuid", lambda: own + 1)
    assert files.foreign() == f"{tmp_path} belongs to uid {own}, not to uid {own + 1}"


@pytest.mark.parametrize("squat", [_link, _give, _pipe])
@pytest.mark.timeout(60)
def test_c11_only_regular_files_of_this_user_are_read_and_written(
    tmp_path: Path, squat: Callable[[Path], None]
) -> None:
    """A pipe would hold the rank for ever."""
    files = MemoryFiles(str(tmp_path))
    keep(files, 5, b"five")
    squat(tmp_path / f"{PART}@5")
    with pytest.raises(OSError, match=r"regular|symbolic"):
        files.read_part(PART, 5)
    with pytest.raises(OSError, match=r"regular|symbolic"):
        files.note_digest(PART, 5, bytes(32))
    (tmp_path / f"{PART}@5").rename(tmp_path / f"{PART}@writing")
    with pytest.raises(OSError, match=r"regular|symbolic"):
        files.write(PART, 4)
