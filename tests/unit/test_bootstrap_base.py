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

from kit.errors import EngineError, ImageError, LockError, LostBaseError
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
    engine = HeldTag(reference="debian:bookworm")

    def asked(*_: object, **__: object) -> None:
        raise EngineError("the world was asked what there is today")

    monkeypatch.setattr(engine, "pull", asked)
    monkeypatch.setattr(bootstrap_base, "make_tar", asked)
    monkeypatch.setattr(build, "_engine", lambda *_: engine)
    order = build.BuildOrder(name="tiny", project=tmp_path, store=tmp_path / "store", relock=relock)
    with pytest.raises(EngineError, match="was asked") if builds else contextlib.nullcontext():
        build.build(order, Silent())


OLD, NEW = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"


@dataclass
class HeldTag:
    """Stands in for an engine that holds one tag, and for its registry, where the tag names NEW, or that does not answer."""

    reference: str = "python:3.12"
    id: str = f"sha256:{'3' * 64}"
    digests: tuple[str, ...] = (f"debian@{OLD}", f"python@{OLD}")
    refusal: str = ""
    platform: str = "linux/amd64"
    podman: bool = False
    version: str = "28"
    pulls: list[str] = field(default_factory=list)

    def inspect(self, reference: str) -> EngineImage | None:
        if reference not in (self.reference, *self.digests):
            return None
        return EngineImage(id=self.id, size=0, config=ImageConfig(), layers=(), diff_ids=(), repo_digests=self.digests)

    def pull(self, reference: str, *, platform: str | None, on_line: Callable[[str], None]) -> None:
        self.pulls.append(reference)
        if self.refusal:
            raise ImageError(f"pull {reference}: the engine refused: {self.refusal}")
        self.id, self.digests = f"sha256:{'4' * 64}", (f"python@{NEW}",)


def referenced(
    engine: HeldTag, pinned: base_image.Pinned | None = None, *, reference: str = "python:3.12", today: bool = False
) -> tuple[str, list[str]]:
    """The digest for the lock, and the lines that were printed. A Dockerfile's own FROM gives the same."""
    said: list[str] = []
    made = base_image.own(
        cast("Engine", engine), reference, platform_=None, on_line=said.append, pinned=pinned, today=today
    )
    return made.digest, said


def pinned_to(digest: str, *, required: bool = True) -> base_image.Pinned:
    lock = make(base=LockedBase(kind="reference", reference="python:3.12", digest=digest))
    return base_image.Pinned(lock=lock, required=required)


@pytest.mark.parametrize("digests", [(), (f"elsewhere/python@{NEW}", f"<none>@{NEW}")], ids=["none", "another-name"])
@pytest.mark.parametrize("required", [True, False])
def test_a_base_that_was_loaded_or_built_here_is_taken_and_no_registry_is_asked(
    digests: tuple[str, ...], *, required: bool
) -> None:
    """The build ended with "neither the engine nor its registry has the image", and had asked none."""
    engine = HeldTag(digests=digests, refusal="dial tcp: lookup registry-1.docker.io: no such host")
    digest, said = referenced(engine, pinned_to(OLD, required=required))
    assert digest == (NEW if digests else engine.id)
    assert said == [f"python:3.12: the engine's image is of no registry; taking it although the lock has {OLD}"]
    assert referenced(engine, today=True) == (digest, [])
    assert engine.pulls == []


@pytest.mark.parametrize("reference", ["python:3.12", "docker.io/library/python:3.12"])
def test_relock_asks_the_registry_what_a_tag_names_today(reference: str) -> None:
    engine = HeldTag(reference=reference)
    assert referenced(engine, reference=reference) == (OLD, []), "without --relock, what the engine has"
    assert referenced(engine, reference=reference, today=True) == (NEW, [])
    assert engine.pulls == [reference]


def test_relock_asks_no_registry_for_a_digest() -> None:
    engine = HeldTag()
    assert referenced(engine, reference=f"python@{OLD}", today=True) == (OLD, [])
    assert engine.pulls == []


@pytest.mark.parametrize(
    "refusal",
    [
        'Get "https://registry-1.docker.io/v2/": dial tcp: lookup registry-1.docker.io on 10.0.0.1:53: server misbehaving',
        'Get "https://registry-1.docker.io/v2/": context deadline exceeded',
    ],
)
def test_relock_takes_the_held_image_where_no_registry_answers_and_says_it(refusal: str) -> None:
    digest, said = referenced(HeldTag(refusal=refusal), today=True)
    assert digest == OLD
    assert said == [
        f"pull python:3.12: the engine refused: {refusal}; taking the image that the engine holds, which may be an older one"
    ]


def test_relock_fails_where_a_registry_refuses_the_tag() -> None:
    with pytest.raises(ImageError, match="toomanyrequests"):
        referenced(HeldTag(refusal="toomanyrequests: rate limit"), today=True)


def test_changed_inputs_take_the_image_of_today_and_not_an_old_one_of_the_engine() -> None:
    """It said "taking the image of today" and took what the engine had."""

    class WithoutOld(HeldTag):
        def pull(self, reference: str, *, platform: str | None, on_line: Callable[[str], None]) -> None:
            if "@" in reference:
                raise ImageError(f"pull {reference}: manifest unknown")
            super().pull(reference, platform=platform, on_line=on_line)

    lost = f"sha256:{'5' * 64}"
    with pytest.raises(LostBaseError, match=f"the image any more that python:3.12 was: {lost}"):
        referenced(WithoutOld(), pinned_to(lost))
    digest, said = referenced(WithoutOld(), pinned_to(lost, required=False))
    assert (digest, len(said)) == (NEW, 1)
