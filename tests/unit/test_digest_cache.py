"""A digest is computed once for each file, and whatever changed its bytes is found."""

from __future__ import annotations

import hashlib
import os
import random
import time
from pathlib import Path

import pytest

from kit.errors import LockError
from kit.images import check_against_lock, digest_cache, store
from tests.support import make_lock


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return digest_cache._memory()


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that has been there for long: ctime cannot be set, so the wait is left out."""
    monkeypatch.setattr(digest_cache, "_SETTLED_S", -60.0)
    (tmp_path / "image").write_bytes(os.urandom(4096))
    return tmp_path / "image"


def test_a_file_is_read_once(file: Path, memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = digest_cache.digest_file(file)
    assert found == hashlib.sha256(file.read_bytes()).hexdigest()
    assert memory.stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(store, "digest_of", lambda _: pytest.fail("read again"))
    assert digest_cache.digest_file(file) == found


@pytest.mark.usefixtures("memory")
def test_20_flipped_bits_of_20_are_found(file: Path) -> None:
    """Size and mtime stay as they are; only ctime and the bytes tell."""
    random.seed(15)
    content = bytearray(file.read_bytes())
    digest_cache.digest_file(file)
    for _ in range(20):
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)
        before = file.stat()
        with file.open("r+b") as out:
            out.write(content)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert digest_cache.digest_file(file) == hashlib.sha256(content).hexdigest()


def test_what_changed_just_now_is_not_remembered(file: Path, memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest_cache, "_SETTLED_S", 2.0)
    digest_cache.digest_file(file)
    assert not memory.exists()
    monkeypatch.setattr(time, "time", lambda: file.stat().st_ctime + 3)
    digest_cache.digest_file(file)
    assert memory.exists()


@pytest.mark.parametrize("spoil", ["mode", "link", "fifo", "owner"])
def test_a_memory_that_somebody_else_may_write_is_not_believed(
    file: Path, memory: Path, spoil: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = digest_cache.digest_file(file)
    memory.write_text(memory.read_text().replace(right, "0" * 64))
    assert digest_cache.digest_file(file) == "0" * 64
    if spoil == "mode":
        memory.chmod(0o666)
    elif spoil == "owner":
        monkeypatch.setattr(os, "geteuid", lambda: memory.stat().st_uid + 1)
    else:
        memory.unlink()
        os.mkfifo(memory) if spoil == "fifo" else memory.symlink_to("/dev/zero")
    assert digest_cache.digest_file(file) == right


@pytest.mark.usefixtures("memory")
def test_an_image_of_the_right_size_and_other_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C2: another member of a shared store's group replaced it; only `verify-image --full` saw it."""
    monkeypatch.setattr("kit.images.squash.sqshfile.check", lambda *_, **__: None)
    lock = make_lock()
    path = store.path(tmp_path, lock.sha256)
    path.parent.mkdir()
    path.write_bytes(b"x" * lock.size)
    with pytest.raises(
        LockError, match=r"has the digest sha256:[0-9a-f]{64}, and the lock says sha256:c0ffee"
    ) as caught:
        check_against_lock.check(lock, tmp_path, full=False)
    assert caught.value.exit_code == 5
