"""Folders that others could make first, and digests that are computed once: two real users where the tests run as root."""

from __future__ import annotations

import hashlib
import os
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import shell
from tests import laid_out

NOBODY, DAEMON = 65534, 1
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="two users take root")


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder like /tmp, below folders that every user can pass."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        folder = Path(name) / "tmp"
        folder.mkdir()
        folder.chmod(0o1777)
        yield folder


def as_user(uid: int, *argv: str | Path) -> shell.Completed:
    """A command as another user; the programs of this checkout may lie where that user cannot pass, so bash reads them here."""
    user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"] if os.geteuid() == 0 else []
    return shell.run([*user, *map(str, argv)], check=False, cwd=Path("/"), env={"PATH": os.environ["PATH"]})


def private(uid: int, folder: Path) -> str:
    """What trust::private_folder says of a folder; empty: it may be used."""
    text = (laid_out.LIB / "trust.sh").read_text()
    done = as_user(
        uid, "bash", "-uc", f'{text}\ntrust::private_folder "$1"; printf %s "${{trust_problem}}"', "-", folder
    )
    return done.stdout + done.stderr


def digest(uid: int, file: Path, memory: Path) -> str:
    return digested(uid, file, memory).stdout


def digested(uid: int, file: Path, memory: Path, first: str = "") -> shell.Completed:
    text = (laid_out.LIB / "trust.sh").read_text()
    return as_user(uid, "bash", "-uc", f'{text}\n{first}\ntrust::digest "$1" "$2"', "-", file, memory)


def aged(file: Path) -> None:
    """As if it had been there for long: ctime cannot be set, and is waited for."""
    while time.time() - file.stat().st_ctime < 3:
        time.sleep(0.2)


@needs_root
def test_a_folder_that_another_user_made_first(shared: Path) -> None:
    """C1, C3: its files ran as the victim's. The owner is named."""
    assert as_user(NOBODY, "mkdir", "-p", "-m", "777", shared / "kit-daemon" / "images").returncode == 0
    assert "belongs to user nobody (65534), not to you" in private(DAEMON, shared / "kit-daemon")
    assert "belongs to user nobody (65534), who could exchange" in private(DAEMON, shared / "kit-daemon" / "images")
    assert "belongs to user nobody (65534), who could exchange" in private(DAEMON, shared / "kit-daemon" / "new")
    assert private(NOBODY, shared / "mine" / "images") == ""
    assert (shared / "mine" / "images").stat().st_mode & 0o7777 == 0o700


@needs_root
def test_links_and_lax_modes(shared: Path) -> None:
    assert as_user(DAEMON, "mkdir", shared / "own", shared / "open").returncode == 0
    assert as_user(NOBODY, "ln", "-s", shared / "own", shared / "link").returncode == 0
    assert "is a symbolic link of user nobody" in private(DAEMON, shared / "link")
    (shared / "open").chmod(0o777)
    assert "has mode 777: others could have put files there" in private(DAEMON, shared / "open")
    shared.chmod(0o777)
    assert "may be written by everybody (mode 777), and has no sticky bit" in private(DAEMON, shared / "own")
    assert "may be written by everybody" in private(DAEMON, shared / "new" / "below" / "that")
    assert not (shared / "new").exists(), "nothing is made where it could be exchanged"


def test_a_digest_that_cannot_be_kept_is_printed_all_the_same(tmp_path: Path) -> None:
    """Of a file that changed just now; beside a memory that others may write; where no memory can be made. It is not a failure."""
    file, memory, me = tmp_path / "image", tmp_path / "verified", os.geteuid()
    file.write_bytes(b"new")
    right = hashlib.sha256(b"new").hexdigest()
    done = digested(me, file, memory)
    assert (done.returncode, done.stdout.strip(), memory.exists()) == (0, right, False)
    aged(file)
    memory.touch(0o666)
    memory.chmod(0o666)
    done = digested(me, file, memory)
    assert (done.returncode, done.stdout.strip(), memory.read_text()) == (0, right, "")
    done = digested(me, file, tmp_path / "none" / "verified")
    assert (done.returncode, done.stdout.strip()) == (0, right)
    memory.chmod(0o600)
    twice = [digested(me, file, memory) for _ in range(2)]
    assert [(one.returncode, one.stdout.strip()) for one in twice] == [(0, right)] * 2
    assert memory.read_text().split()[-1] == right
    assert digested(me, tmp_path / "missing", memory).returncode != 0
    # It changes while it is read: what was read is told, and forgotten.
    changes = 'sha256sum() { command sha256sum; printf x >>"${file}"; }'
    before = memory.read_text()
    file.write_bytes(b"other")
    aged(file)
    done = digested(me, file, memory, changes)
    assert (done.returncode, done.stdout.strip()) == (0, hashlib.sha256(b"other").hexdigest())
    assert memory.read_text() == before


def test_a_digest_is_computed_once_and_after_every_change(tmp_path: Path) -> None:
    file, memory = tmp_path / "image", tmp_path / "verified"
    content = bytearray(os.urandom(4096))
    file.write_bytes(content)
    first = hashlib.sha256(content).hexdigest()
    aged(file)
    me = os.geteuid()
    assert digest(me, file, memory) == first
    assert memory.stat().st_mode & 0o777 == 0o600
    # Remembered: another digest in its place is believed, and so no byte is read.
    memory.write_text(memory.read_text().replace(first, "0" * 64))
    assert digest(me, file, memory) == "0" * 64
    memory.chmod(0o666)
    assert digest(me, file, memory) == first
    memory.chmod(0o600)
    random.seed(15)
    for _ in range(20):
        at = random.randrange(len(content))
        content[at] ^= 1 << random.randrange(8)
        times = file.stat()
        with file.open("r+b") as out:
            out.write(content)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert digest(me, file, memory) == f"{hashlib.sha256(content).hexdigest()}"


@needs_root
def test_a_memory_that_another_user_wrote_is_not_believed(shared: Path) -> None:
    file, memory = shared / "image", shared / "verified"
    file.write_bytes(b"poison")
    found = file.stat()
    key = shell.run(["stat", "--format=%d %i %s %.9Y %.9Z", str(file)]).stdout
    assert as_user(NOBODY, "bash", "-c", f"echo '{key} {'0' * 64}' >{memory}").returncode == 0
    assert digest(DAEMON, file, memory) == f"{hashlib.sha256(b'poison').hexdigest()}"
    assert file.stat().st_ino == found.st_ino


def stage(source: Path, sha256: str, folder: Path) -> shell.Completed:
    return shell.run([str(laid_out.BIN / "stage.sh"), str(source), sha256, str(folder), "1000"], check=False)


def test_a_staged_image_that_is_not_the_locked_one(tmp_path: Path) -> None:
    """C1: a file under the locked digest was taken for the image. Both digests are named, and the next start copies it again."""
    source, folder = tmp_path / "image.sqsh", tmp_path / "cache" / "images"
    source.write_bytes(b"right")
    right, wrong = (hashlib.sha256(text).hexdigest() for text in (b"right", b"wrong"))
    assert stage(source, right, folder).returncode == 0
    staged = folder / f"{right}.sqsh"
    assert stage(source, right, folder).returncode == 0
    staged.write_bytes(b"wrong")
    done = stage(source, right, folder)
    assert done.returncode == 1
    assert f"has the digest {wrong}, the lock says {right}" in done.stderr
    assert stage(source, right, folder).returncode == 0
    assert staged.read_bytes() == b"right"


def test_the_image_used_longest_ago_goes_first(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "images"
    names = []
    for number, text in enumerate((b"a" * 400_000, b"b" * 400_000)):
        source = tmp_path / f"{number}.sqsh"
        source.write_bytes(text)
        names.append(hashlib.sha256(text).hexdigest())
        assert stage(source, names[-1], folder).returncode == 0
    os.utime(folder / f".used-{names[0]}")
    os.utime(folder / f".used-{names[1]}", (1, 1))
    (tmp_path / "2.sqsh").write_bytes(b"c" * 400_000)
    assert stage(tmp_path / "2.sqsh", hashlib.sha256(b"c" * 400_000).hexdigest(), folder).returncode == 0
    assert {path.stem for path in folder.glob("*.sqsh")} == {names[0], hashlib.sha256(b"c" * 400_000).hexdigest()}
