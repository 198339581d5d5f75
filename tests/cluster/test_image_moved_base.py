"""A tag that has moved in its registry since the lock: the build takes the digest of the lock, and says it when that is gone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
import requests

from kit import shell
from kit.errors import LockError
from kit.images import image_lock, squash_and_lock
from kit.images.build import build
from kit.images.progress import Silent
from kit.images.sources.engine import Engine
from tests.cluster import faulty_registry
from tests.cluster.image_lab import BASE, ImageLab

pytestmark = pytest.mark.engine

# For any other type, the registry answers with an older form of the manifest, of another digest.
_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_MOUNT = "--mount=type=cache,target=/cache "
GONE = f"sha256:{'0' * 64}"
STEPS = "ENV PATH=/bin\nRUN {mount}cat /from > /seen\n"


class MovingTag:
    """A tag of a registry, and what each push called by it."""

    def __init__(self, place: str) -> None:
        self.repository = f"{place}/team/base"
        self.tag = f"{self.repository}:1"
        self.digests: list[str] = []
        self._api = f"http://{place}/v2/team/base/manifests"
        self._client = docker.from_env()

    def push(self, work: Path, text: str) -> None:
        """Let the tag name another image; the engine keeps neither."""
        (work / "Dockerfile").write_text(f'FROM {BASE}\nENV PATH=/bin\nRUN echo "{text}" > /from\n')
        self._client.images.build(path=str(work), tag=self.tag, rm=True, forcerm=True)
        self._client.api.push(self.repository, "1")
        answer = requests.head(f"{self._api}/1", headers={"Accept": _MANIFEST}, timeout=30)
        self.digests.append(answer.headers["Docker-Content-Digest"])
        self.forget()

    def pull(self) -> None:
        """Let the engine hold what the tag names now."""
        self._client.images.pull(self.repository, "1")

    def hold(self, number: int) -> None:
        """Let the engine hold what a push called by the tag, as if it had been pulled then."""
        self._client.images.pull(f"{self.repository}@{self.digests[number]}").tag(self.tag)

    def forget(self) -> None:
        """Remove all names of the image from the engine."""
        # The engine lists no image that has a child and no tag, so the digests are those of the pushes.
        for name in (self.tag, *(f"{self.repository}@{digest}" for digest in self.digests)):
            with contextlib.suppress(docker.errors.ImageNotFound):
                self._client.api.remove_image(name, force=True)


@pytest.fixture
def moving(engine: Engine, tmp_path: Path) -> Iterator[MovingTag]:
    """A tag whose image says `first`."""
    with faulty_registry.registry(tmp_path / "registry") as place:
        made = MovingTag(place)
        (tmp_path / "pushed").mkdir()
        made.push(tmp_path / "pushed", "first")
        yield made
        engine.remove("kit-image/tiny:latest")
        made.forget()


def write(lab: ImageLab, tag: str, *, own: bool, mount: str = "") -> None:
    """An image on the tag: by image.toml, or by the Dockerfile's own FROM lines."""
    steps = STEPS.format(mount=mount)
    if own:
        lab.write(f"ARG V=1\nFROM {tag[:-1]}${{V}} AS a\nFROM {tag} \\\n AS b\n{steps}COPY --from=a /from /of-a\n")
        (lab.folder / "image.toml").write_text('[build]\ncontext = "."\n')
    else:
        lab.write(f"ARG BASE\nFROM ${{BASE}}\n{steps}")
        (lab.folder / "image.toml").write_text(f'[base]\nreference = "{tag}"\n')


def lose_base(lab: ImageLab, digest: str) -> None:
    """Let the lock name a base that no registry has. An engine keeps the manifests of what it pulled, also after a removal."""
    text = lab.lock_file.read_text()
    assert digest in text
    lab.lock_file.write_text(text.replace(digest, GONE))


def seen(made: squash_and_lock.Outcome, path: str = "seen") -> str:
    return shell.run(["unsquashfs", "-cat", str(made.image), path]).stdout.strip()


@pytest.mark.parametrize(
    ("own", "mount"),
    [(False, ""), (False, _MOUNT), (True, ""), (True, _MOUNT)],
    ids=["base", "base-buildkit", "from", "from-buildkit"],
)
def test_a_build_takes_what_the_tag_named_for_the_lock(
    moving: MovingTag, tmp_path: Path, *, own: bool, mount: str
) -> None:
    lab = ImageLab(project=tmp_path / "project", store=tmp_path / "store")
    write(lab, moving.tag, own=own, mount=mount)
    first = lab.build()
    assert (seen(first), first.lock.base.digest) == ("first", moving.digests[0])
    moving.forget()
    moving.push(tmp_path / "pushed", "second")
    for pulled in (False, True):
        if pulled:
            moving.pull()
        again = lab.build(fresh=True, locked=True)
        assert (seen(again), again.lock.sha256) == ("first", first.lock.sha256), "the engine has the new one" * pulled
        if own:
            assert seen(again, "of-a") == "first"
    # A change of the Dockerfile keeps the base, too.
    with (lab.folder / "Dockerfile").open("a") as file:
        file.write("RUN echo more > /more\n")
    assert seen(lab.build()) == "first"
    lose_base(lab, moving.digests[0])
    with pytest.raises(LockError, match=f"the image any more that {moving.tag} was: {GONE}") as caught:
        lab.build(fresh=True)
    assert "kit build-image tiny --relock" in caught.value.hint
    moving.hold(0)
    relocked = build.build(build.BuildOrder(name="tiny", project=lab.project, store=lab.store, relock=True), Silent())
    assert (seen(relocked), relocked.lock.base.digest) == ("second", moving.digests[1])


def test_changed_inputs_take_the_image_of_today_when_that_of_the_lock_is_gone(
    moving: MovingTag, tmp_path: Path
) -> None:
    lab = ImageLab(project=tmp_path / "project", store=tmp_path / "store")
    write(lab, moving.tag, own=False)
    lab.build()
    moving.push(tmp_path / "pushed", "second")
    lose_base(lab, moving.digests[0])
    write(lab, moving.tag, own=False)
    with (lab.folder / "Dockerfile").open("a") as file:
        file.write("RUN echo more > /more\n")
    made = lab.build()
    assert seen(made) == "second"
    assert f"base.digest: {GONE} -> {moving.digests[1]}" in made.changes
    assert image_lock.read_lock(lab.lock_file).base.digest == moving.digests[1]
