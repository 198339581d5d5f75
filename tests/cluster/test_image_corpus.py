"""Odd but legal images by every way, as root and as an ordinary user: one digest, and the tree that umoci or the engine unpacks."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import shell
from kit.errors import ImageError
from kit.images import importing, squash_and_lock
from kit.images.progress import Silent
from kit.images.sources import engine as engines
from tests.cluster import image_corpus as corpus
from tests.cluster.image_lab import engine_of_one_module, needs_root
from tests.support import REPO

pytestmark = pytest.mark.engine

NOBODY = 65534

# mksquashfs reads these otherwise from a folder than from a stream: the kit sees that and takes the stream.
STREAM_ONLY = {
    "user-xattr",
    "user-xattr-on-folder",
    "trusted-xattr",
    "time-before-1970",
    "time-after-2106",
    "time-fraction-before-1970",
}


@pytest.fixture(scope="module")
def engine() -> Iterator[engines.Engine]:
    with engine_of_one_module() as found:
        yield found


class Ways:
    """One image as layout and archive and in the engine, and its import by each way."""

    def __init__(self, work: Path, layers: list[bytes], config: dict[str, object], tag: str) -> None:
        self._work, self._tag = work, tag
        self.layout = corpus.oci_layout(work / "layout", layers, config)
        self.packed = corpus.oci_layout(work / "packed", layers, config, packed=True)
        self.archive = corpus.docker_archive(work / "archive.tar", layers, config, tag)

    def run(self, source: Path | str, name: str) -> squash_and_lock.Outcome:
        """Import in this process."""
        project = self._work / "project"
        project.mkdir(exist_ok=True)
        order = importing.ImportOrder(uri=str(source), name=name, project=project, store=self._work / "store")
        return importing.run(order, Silent())

    def digests(self, engine: engines.Engine | None, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
        """Way -> digest."""
        found = {name: self.run(getattr(self, name), name).lock.sha256 for name in ("layout", "packed", "archive")}
        if os.geteuid() == 0:
            found["user"] = self.by_user()
        if engine is None:
            return found
        engine.load(self.archive)
        try:
            by_engine = self.run(f"dockerd://{self._tag}", "engine")
            found[by_engine.method] = by_engine.lock.sha256
            with monkeypatch.context() as patch:
                patch.setattr(engines, "_reachable", lambda driver: ())
                found["streamed export"] = self.run(f"dockerd://{self._tag}", "stream").lock.sha256
        finally:
            engine.remove(self._tag)
        return found

    def by_user(self) -> str:
        """The digest that an ordinary user gets."""
        home = self._work / "user"
        home.mkdir()
        os.chown(home, NOBODY, NOBODY)
        argv = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", sys.executable, "-m", "kit"]
        argv += ["import-image", str(self.packed), "--name", "user", "--store", str(home / "store")]
        env = os.environ | {"HOME": str(home), "PYTHONPATH": str(REPO), "TMPDIR": str(home)}
        subprocess.run(argv, cwd=home, env=env, check=True, capture_output=True)
        (image,) = (home / "store/sha256").glob("*.sqsh")
        return image.stem


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that an ordinary user may enter."""
    for name in ("CONFIG", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    place = Path("/tmp") / f"kit-corpus-{os.getpid()}-{tmp_path.name}"
    place.mkdir(mode=0o755)
    yield place
    shutil.rmtree(place)


@needs_root
@pytest.mark.parametrize("mounted", [True, False], ids=["mounted", "streamed"])
def test_one_digest_by_every_way(
    engine: engines.Engine, work: Path, monkeypatch: pytest.MonkeyPatch, *, mounted: bool
) -> None:
    cases = corpus.BATCH | corpus.AS_ENGINES_DO
    if mounted:
        cases = {name: layers for name, layers in cases.items() if name not in STREAM_ONLY}
    found = Ways(work, corpus.batch(cases), {}, "kit-test/corpus:1").digests(engine, monkeypatch)
    assert ("overlay mount of the layers" in found) is mounted
    assert len(set(found.values())) == 1, found


def test_what_engines_refuse_has_one_digest_too(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Ways(work, corpus.batch(corpus.WITHOUT_ENGINE), {}, "kit-test/corpus:2").digests(None, monkeypatch)
    assert len(set(found.values())) == 1, found


@needs_root
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if number % 5 == 0 else pytest.mark.slow) for number, name in enumerate(corpus.ALONE)],
)
def test_an_image_of_its_own_has_one_digest(
    engine: engines.Engine, work: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    case = corpus.ALONE[name]
    layers = [corpus.tar_of(layer) for layer in case.layers]
    found = Ways(work, layers, case.config, f"kit-test/{name}:1").digests(engine, monkeypatch)
    assert len(set(found.values())) == 1, found


@needs_root
@pytest.mark.skipif(shutil.which("umoci") is None, reason="umoci is not installed")
def test_the_tree_is_umocis(work: Path, tmp_path: Path) -> None:
    ways = Ways(work, corpus.batch(corpus.BATCH | corpus.WITHOUT_ENGINE), {}, "kit-test/corpus:3")
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    shell.run(["umoci", "raw", "unpack", "--image", f"{ways.layout}:latest", str(theirs)])
    shell.run(["unsquashfs", "-quiet", "-no-progress", "-d", str(ours), str(ways.run(ways.layout, "x").image)])
    expected, found = _tree(theirs), _tree(ours)
    for added in ("dev", "etc", "mnt", "proc", "run", "sys", "tmp"):
        found = {path: what for path, what in found.items() if path.split("/")[0] != added}
    assert sorted(found) == sorted(expected)
    different = {path: (found[path], what) for path, what in expected.items() if found[path] != what}
    assert different == {}


def _tree(root: Path) -> dict[str, tuple[object, ...]]:
    """Path -> all that is to be equal, by the rules of docs/guides/images.md."""
    inodes: dict[tuple[int, int], str] = {}
    found: dict[str, tuple[object, ...]] = {}
    for folder, folders, files in os.walk(os.fsencode(root)):
        folders.sort()
        for raw in sorted([*folders, *files]):
            place = Path(os.fsdecode(folder)) / os.fsdecode(raw)
            status = place.lstat()
            path = str(place.relative_to(root))
            first = path if stat.S_ISDIR(status.st_mode) else inodes.setdefault((status.st_dev, status.st_ino), path)
            if stat.S_ISLNK(status.st_mode):
                found[path] = (first, str(place.readlink()), int(status.st_mtime))
            elif stat.S_ISDIR(status.st_mode):
                found[path] = (stat.S_IMODE(status.st_mode) | 0o700,)
            else:
                attributes = [name for name in os.listxattr(place) if name == "security.capability"]
                time = min(max(int(status.st_mtime // 1), 0), 2**32 - 1)
                content = place.read_bytes() if stat.S_ISREG(status.st_mode) else status.st_rdev
                found[path] = (first, status.st_mode | 0o400, time, attributes, content)
    return found


def test_a_hard_link_without_a_target_is_named_with_its_layer(work: Path) -> None:
    ways = Ways(work, [corpus.tar_of([corpus.f("x")]), corpus.tar_of([corpus.hard("y", "no")])], {}, "kit-test/x:1")
    with pytest.raises(ImageError, match=r"layer 2 .*hard link to no"):
        ways.run(ways.layout, "x")


def test_a_file_with_entries_below_it_is_named_with_its_layer(work: Path) -> None:
    ways = Ways(work, [corpus.tar_of([corpus.f("x"), corpus.f("x/y")])], {}, "kit-test/x:1")
    with pytest.raises(ImageError, match=r"layer 1 .*x is a file"):
        ways.run(ways.layout, "x")
