"""A bootstrapped base after its distribution has published newer packages: the versions of the lock, or a sentence."""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from kit.errors import EngineError, LockError
from kit.images import squash_and_lock
from kit.images.build import base_image, bootstrap_base, build
from kit.images.progress import Silent
from kit.images.sources.engine import Engine, EngineImage
from kit.schema.image import Base, Bootstrap, ImageConfig, ImageLock, LockedBase, Packages
from tests.unit.test_image_lock import make

DIGEST = f"sha256:{'c' * 64}"
OTHER = f"sha256:{'d' * 64}"
BOOKWORM = Base(bootstrap=Bootstrap(suite="bookworm"))
SUITE = '[base.bootstrap]\nsuite = "bookworm"\n'


def locked(**versions: str) -> ImageLock:
    base = LockedBase(kind="bootstrap", reference="bookworm", digest=DIGEST)
    return make(base=base, packages=Packages(apt=versions, pip={}))


def write_tar(path: Path, **versions: str) -> None:
    """A base of these packages: dpkg's status file is all that is read of it."""
    status = "\n\n".join(
        f"Package: {name}\nStatus: install ok installed\nVersion: {version}" for name, version in versions.items()
    ).encode()
    with tarfile.open(path, "w") as tar:
        member = tarfile.TarInfo("./var/lib/dpkg/status")
        member.size = len(status)
        tar.addfile(member, io.BytesIO(status))


def make_package(mirror: Path, version: str) -> None:
    """A package `thing` of this version in a folder that apt takes as a mirror."""
    root = mirror / f"root-{version}"
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN/control").write_text(
        f"Package: thing\nVersion: {version}\nArchitecture: all\nMaintainer: a <a@b.c>\nDescription: thing\n"
    )
    subprocess.run(["dpkg-deb", "--build", str(root), str(mirror)], check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(root)


def chosen_version(tmp_path: Path, preferences: str) -> str:
    """The version of `thing` that apt itself takes from a mirror with 1.0-1 and 1.0-1+deb12u3."""
    mirror, etc, state = tmp_path / "mirror", tmp_path / "etc", tmp_path / "state"
    for folder in (mirror, etc, state / "lists/partial", state / "cache/archives/partial"):
        folder.mkdir(parents=True)
    for version in ("1.0-1", "1.0-1+deb12u3"):
        make_package(mirror, version)
    stanzas = [
        subprocess.run(["dpkg-deb", "--field", str(file)], check=True, capture_output=True, text=True).stdout
        + f"Filename: ./{file.name}\nSize: {file.stat().st_size}\n"
        for file in mirror.glob("*.deb")
    ]
    (mirror / "Packages").write_text("\n".join(stanzas))
    (etc / "sources.list").write_text(f"deb [trusted=yes] copy:{mirror} ./\n")
    (etc / "preferences").write_text(preferences)
    (state / "status").touch()
    options = {
        "Dir::Etc": str(etc),
        "Dir::State": str(state),
        "Dir::State::status": str(state / "status"),
        "Dir::Cache": str(state / "cache"),
        "APT::Sandbox::User": "",
    }
    apt = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    subprocess.run(["apt-get", *apt, "-qq", "update"], check=True, capture_output=True)
    said = subprocess.run(
        ["apt-get", *apt, "-s", "install", "thing"], check=True, capture_output=True, text=True
    ).stdout
    return next(line.split("(")[1].split()[0] for line in said.splitlines() if line.startswith("Inst thing"))


@pytest.mark.skipif(not shutil.which("apt-get"), reason="no apt-get on this machine")
@pytest.mark.parametrize(
    ("versions", "taken"),
    [
        ({"thing": "1.0-1"}, "1.0-1"),
        ({}, "1.0-1+deb12u3"),
        ({"thing": "0.9-1"}, "1.0-1+deb12u3"),  # no mirror has it: apt goes on, and require_versions says it
    ],
)
def test_apt_takes_the_version_of_the_lock_while_a_mirror_has_it(
    tmp_path: Path, versions: dict[str, str], taken: str
) -> None:
    assert chosen_version(tmp_path, bootstrap_base.preferences(versions)) == taken


def test_a_base_with_another_version_than_the_lock_is_an_error_that_names_it(tmp_path: Path) -> None:
    tar = tmp_path / "base.tar"
    write_tar(tar, bash="5.2", libpam0g="1.5.2-6+deb12u3", added="1")
    bootstrap_base.require_versions(tar, locked(bash="5.2", libpam0g="1.5.2-6+deb12u3"))
    with pytest.raises(LockError, match=r"libpam0g 1\.5\.2-6\+deb12u2 \(it has 1\.5\.2-6\+deb12u3\)") as error:
        bootstrap_base.require_versions(tar, locked(bash="5.2", libpam0g="1.5.2-6+deb12u2"))
    assert "bash" not in error.value.message
    assert "kit build-image tiny --relock" in error.value.hint


@dataclass
class HeldImages:
    """Stands in for an engine: tag -> digest of the layer. A test of a cluster builds with a real one."""

    tags: dict[str, str] = field(default_factory=dict)
    next: str = DIGEST

    def inspect(self, reference: str) -> EngineImage | None:
        digest = self.tags.get(reference)
        return digest and EngineImage(  # type: ignore[return-value] # None where there is none
            id=digest, size=0, config=ImageConfig(), layers=(), diff_ids=(digest,), repo_digests=()
        )

    def import_tar(self, tar: Path, reference: str) -> None:
        assert tar.is_file()
        self.tags[reference] = self.next


@pytest.fixture
def bootstraps(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The versions of each bootstrap; the mirror has bash 5.3 only."""
    asked: list[dict[str, str]] = []

    def make_tar(_: Bootstrap, tar: Path, __: Callable[[str], None], *, versions: dict[str, str]) -> None:
        asked.append(versions)
        write_tar(tar, bash="5.3")

    monkeypatch.setattr(bootstrap_base, "make_tar", make_tar)
    return asked


def ready(engine: HeldImages, work: Path, pinned: base_image.Pinned | None, *, fresh: bool = False) -> str:
    return base_image.ready(
        cast("Engine", engine),
        BOOKWORM,
        work=work,
        platform_=None,
        fresh=fresh,
        on_line=lambda _: None,
        pinned=pinned,
    ).digest


def test_a_base_of_the_locked_digest_is_used_and_another_one_is_not(
    tmp_path: Path, bootstraps: list[dict[str, str]]
) -> None:
    engine = HeldImages()
    assert ready(engine, tmp_path, None) == DIGEST
    pinned = base_image.Pinned(lock=locked(bash="5.3"), required=True)
    assert ready(engine, tmp_path, pinned) == DIGEST
    assert bootstraps == [{}], "the engine has that base"
    engine.tags = dict.fromkeys(engine.tags, OTHER)
    assert ready(engine, tmp_path, pinned) == DIGEST
    assert ready(engine, tmp_path, pinned) == DIGEST
    assert bootstraps == [{}, {"bash": "5.3"}], "once with the lock's versions, under a tag of its own"
    assert ready(engine, tmp_path, pinned, fresh=True) == DIGEST
    assert bootstraps[2:] == [{"bash": "5.3"}], "--no-cache keeps the lock's versions"


def test_the_same_inputs_stop_at_a_version_that_is_gone_and_changed_inputs_do_not(
    tmp_path: Path, bootstraps: list[dict[str, str]]
) -> None:
    engine = HeldImages()
    with pytest.raises(LockError, match=r"bash 5\.2 \(it has 5\.3\)"):
        ready(engine, tmp_path, base_image.Pinned(lock=locked(bash="5.2"), required=True))
    assert engine.tags == {}
    assert ready(engine, tmp_path, base_image.Pinned(lock=locked(bash="5.2"), required=False)) == DIGEST
    assert bootstraps == [{"bash": "5.2"}] * 2


@pytest.mark.parametrize(
    ("base", "relock", "builds"),
    [
        (SUITE, True, True),
        (SUITE, False, False),
        ('[base]\nreference = "debian:bookworm"\n', True, True),
        (f'[base]\nreference = "debian@{DIGEST}"\n', True, False),
        ('[build]\ncontext = "."\n', True, True),
    ],
    ids=["bootstrap", "bootstrap-locked", "tag", "digest", "from"],
)
def test_relock_takes_the_base_of_today_also_when_the_locked_image_is_there(
    base: str, relock: bool, builds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said "nothing has changed": an update of the distribution, or of a tag, is no input of the image's folder."""
    folder = tmp_path / "containers/tiny"
    folder.mkdir(parents=True)
    (folder / "image.toml").write_text(base)
    (folder / "Dockerfile").write_text("ARG BASE=debian:bookworm\nFROM ${BASE}\n")
    held = squash_and_lock.Outcome(lock=make(), lock_file=tmp_path, image=tmp_path, built=False)
    monkeypatch.setattr(squash_and_lock, "unchanged", lambda _: held)

    def no_engine(*_: object) -> None:
        raise EngineError("no engine")

    monkeypatch.setattr(build, "_engine", no_engine)
    order = build.BuildOrder(name="tiny", project=tmp_path, store=tmp_path / "store", relock=relock)
    with pytest.raises(EngineError) if builds else contextlib.nullcontext():
        build.build(order, Silent())
