"""A repository's own Dockerfile becomes a locked image: built where it is, and again only when what it copies has changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from kit import shell
from kit.images import image_lock
from kit.images.sources import engine as engines
from tests.cluster.image_lab import BASE, ImageLab

pytestmark = pytest.mark.engine

# Arguments in FROM, stages, an ignored file, a whole context.
DOCKERFILE = f"""\
ARG TAG={BASE.rpartition(":")[2]}
ARG BASE={BASE.rpartition(":")[0]}:${{TAG}}
FROM ${{BASE}} AS build
ARG WORD=none
ENV PATH=/bin
COPY src /src
RUN cat /src/a > /made && echo "$WORD" >> /made
FROM ${{BASE}} AS run
ENV PATH=/bin
COPY --from=build /made /made
"""


@pytest.fixture
def lab(engine: engines.Engine, tmp_path: Path) -> Iterator[ImageLab]:
    made = ImageLab(project=tmp_path / "repo", store=tmp_path / "store")
    (made.project / ".git").mkdir(parents=True)
    (made.project / "src").mkdir()
    (made.project / "src/a").write_text("from the repository\n")
    (made.project / "Dockerfile").write_text(DOCKERFILE)
    yield made
    engine.remove("kit-image/repo:latest")


def built(lab: ImageLab, *words: str) -> dict[str, object]:
    process = lab.kit("build-image", *words, "--json")
    out, err = process.communicate()
    assert process.returncode == 0, err
    found: dict[str, object] = json.loads(out)
    return found


def content(made: dict[str, object], path: str) -> str:
    return shell.run(["unsquashfs", "-cat", str(made["path"]), path]).stdout


def test_it_is_built_where_it_is_and_again_when_what_it_copies_changes(lab: ImageLab, engine: engines.Engine) -> None:
    first = built(lab, ".", "--build-arg", "WORD=given", "--target", "run")
    assert content(first, "made") == "from the repository\ngiven"
    assert list((lab.project / "containers/repo").iterdir()) != []
    lock = image_lock.read_lock(lab.project / "containers/repo/image.lock")
    base = engine.inspect(BASE)
    assert base is not None
    assert (lock.base.kind, lock.base.reference, lock.base.digest) == ("reference", BASE, base.id)
    assert lock.context is not None
    assert not lock.reproducible
    (lab.project / "README.md").write_text("not copied")
    assert not built(lab, "repo")["built"]
    (lab.project / "src/a").write_text("changed\n")
    second = built(lab, ".")
    assert content(second, "made") == "changed\ngiven"
    assert any(str(change).startswith("context: ") for change in second["changes"])  # type: ignore[attr-defined]


def test_a_failed_build_leaves_no_image_in_the_engine(lab: ImageLab) -> None:
    client = docker.from_env()
    before = {image.id for image in client.images.list(filters={"dangling": True})}
    text = DOCKERFILE + "RUN echo made-by-this-test > /layer\nRUN echo the last words && ls /nothing\n"
    (lab.project / "Dockerfile").write_text(text)
    process = lab.kit("build-image", ".", "--network", "none")
    _, err = process.communicate()
    assert process.returncode != 0
    assert "  the last words" in err
    assert {image.id for image in client.images.list(filters={"dangling": True})} <= before


def test_it_can_begin_with_nothing_and_have_another_file(lab: ImageLab) -> None:
    (lab.project / "docker").mkdir()
    (lab.project / "docker/other.Dockerfile").write_text("FROM scratch\nCOPY src/a /a\n")
    made = built(lab, "--file", "docker/other.Dockerfile", "--context", ".", "--network", "none", "--name", "repo")
    assert content(made, "a") == "from the repository"
    lock = image_lock.read_lock(lab.project / "containers/repo/image.lock")
    assert (lock.base.reference, lock.reproducible) == ("scratch", True)
