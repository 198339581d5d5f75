"""Dockerfiles that only BuildKit can read: built by the same engine, their secrets in no layer, what is missing named first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import shell
from kit.errors import ConfigError, ImageError
from kit.images.build import buildkit
from kit.images.sources import engine as engines
from tests.cluster.image_lab import ImageLab, wait_until

pytestmark = pytest.mark.engine

HEAD = "ARG BASE\nFROM ${BASE}\n"
# A cache that outlives the step, a secret of the environment and one of a file, a file of the context.
STEPS = HEAD + (
    "COPY given /app/given\n"
    "RUN --mount=type=cache,target=/keep --mount=type=secret,id=token --mount=type=secret,id=net.rc,target=/root/.netrc \\\n"
    "    echo > /keep/mark && read net < /root/.netrc \\\n"
    "    && { read token < /run/secrets/token || echo ${#token} ${#net} > /app/size; }\n"
)
VALUE = "kit-secret-of-a-build"
SECRETS = '[build.secrets]\ntoken = { env = "KIT_TEST_TOKEN" }\n"net.rc" = { file = "../../a, b.netrc" }\n'


@pytest.fixture
def lab(engine: engines.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ImageLab]:
    for name in ("CONFIG", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setenv("KIT_TEST_TOKEN", VALUE)
    made = ImageLab(project=tmp_path / "project", store=tmp_path / "store")
    made.write(STEPS, toml=SECRETS)
    (made.folder / "given").write_text("from the context\n")
    (made.project / "a, b.netrc").write_text(VALUE + "\n")
    yield made
    engine.remove("kit-image/tiny:latest")
    assert engine.tags("kit-base/marked") == []


@pytest.fixture
def sessions() -> None:
    if not any(buildkit._holds_sessions(one, buildkit._environment()) for one in buildkit._programs()):
        pytest.skip("needs a docker program that can use BuildKit")


@pytest.mark.usefixtures("sessions")
def test_a_build_with_a_cache_and_secrets_comes_again_and_keeps_no_secret(lab: ImageLab, tmp_path: Path) -> None:
    first = lab.build(fresh=True)
    second = lab.build(fresh=True, store=tmp_path / "other")
    assert second.lock.sha256 == first.lock.sha256
    assert not lab.build().built
    size = len(VALUE)
    said = shell.run(["unsquashfs", "-cat", str(first.image), "app/size", "app/given"]).stdout
    assert said == f"{size} {size}\nfrom the context"
    tree = tmp_path / "tree"
    shell.run(["unsquashfs", "-no-progress", "-d", str(tree), str(first.image)])
    assert not (tree / "keep/mark").exists()
    holding = [path for path in tree.rglob("*") if path.is_file() and VALUE.encode() in path.read_bytes()]
    assert holding == []
    assert VALUE not in lab.lock_file.read_text()


@pytest.mark.usefixtures("sessions")
def test_a_failing_step_is_shown_with_its_last_lines(lab: ImageLab) -> None:
    lab.write(HEAD + "RUN --mount=type=cache,target=/keep echo the last words && ls /no-such-place\n")
    with pytest.raises(ImageError) as caught:
        lab.build()
    first, *rest = caught.value.message.splitlines()
    assert first.startswith("the build failed at RUN --mount=type=cache,target=/keep echo the last words")
    # The two lines come by two streams, in any order.
    words, refused = sorted(rest[:2], key=lambda line: "/no-such-place" in line)
    assert words == "  the last words"
    assert "/no-such-place" in refused
    assert lab.images() == []


@pytest.mark.parametrize("mount", ["", "--mount=type=tmpfs,target=/scratch "], ids=["classic", "buildkit"])
def test_the_platform_is_known_to_every_builder(
    lab: ImageLab, engine: engines.Engine, mount: str, request: pytest.FixtureRequest
) -> None:
    if mount:
        request.getfixturevalue("sessions")
    step = f'RUN {mount}echo "$TARGETARCH-$TARGETVARIANT $BUILDPLATFORM" > /said\n'
    lab.write(HEAD + "ARG TARGETARCH TARGETVARIANT\nARG BUILDPLATFORM\n" + step)
    said = shell.run(["unsquashfs", "-cat", str(lab.build().image), "said"]).stdout
    assert said == f"{engine.platform.split('/')[1]}- {engine.platform}"


@pytest.mark.usefixtures("sessions")
def test_a_syntax_line_needs_no_registry(lab: ImageLab) -> None:
    lab.write("# syntax=docker/dockerfile:1\n" + HEAD + "RUN --mount=type=tmpfs,target=/scratch echo made > /said\n")
    made = lab.build()
    assert shell.run(["unsquashfs", "-cat", str(made.image), "said"]).stdout == "made"
    assert made.lock.reproducible


@pytest.mark.usefixtures("sessions")
def test_a_frontend_that_cannot_be_fetched_is_named(lab: ImageLab) -> None:
    lab.write("# syntax=127.0.0.1:1/other/language:1\n" + HEAD + "RUN true\n")
    with pytest.raises(ImageError, match=r"the line # syntax=127\.0\.0\.1:1/other/language:1 names a frontend"):
        lab.build()


@pytest.mark.usefixtures("sessions")
def test_a_here_document_is_built_where_the_engine_reads_it(lab: ImageLab, engine: engines.Engine) -> None:
    lab.write(HEAD + "RUN <<EOF\necho one > /app-one\necho two > /app-two\nEOF\n")
    if buildkit._major(engine.version) < 23:
        with pytest.raises(
            ImageError, match=r"line 3: a here-document needs Docker Engine 23.0 or newer, and this one is "
        ):
            lab.build()
        return
    assert shell.run(["unsquashfs", "-cat", str(lab.build().image), "app-two"]).stdout == "two"


def test_without_a_program_that_holds_sessions_the_line_is_named(
    lab: ImageLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer `docker` without its plugin is what several distributions install."""
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\n[ "$1" = --version ] && { echo Docker version 28.2.2, build x; exit 0; }\nexit 1\n')
    program.chmod(0o755)
    known = {name: shell.which(name) for name in ("mksquashfs", "setpriv")}
    for name, found in known.items():
        if found:
            (program.parent / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(program.parent))
    with pytest.raises(ImageError, match=r"line 4: RUN --mount needs BuildKit, and no 'docker' program") as caught:
        lab.build()
    assert "'docker buildx version' answers" in caught.value.hint
    assert lab.images() == []


def test_a_secret_that_is_not_there_is_named_before_the_build(lab: ImageLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KIT_TEST_TOKEN")
    (lab.project / "a, b.netrc").unlink()
    with pytest.raises((ConfigError, ImageError)) as caught:
        lab.build()
    if not any(buildkit._holds_sessions(one, buildkit._environment()) for one in buildkit._programs()):
        return
    assert "build.secrets.token.env: KIT_TEST_TOKEN is not set where 'kit build-image' runs" in str(caught.value)
    assert "build.secrets.net.rc.file" in str(caught.value)
    assert lab.images() == []


@pytest.mark.usefixtures("sessions")
def test_a_kill_in_the_middle_leaves_nothing_and_the_next_build_works(lab: ImageLab, engine: engines.Engine) -> None:
    lab.write(HEAD + "RUN --mount=type=cache,target=/keep echo waiting > /app-one && sleep 4\n")
    killed = lab.kit("build-image", "tiny", "--no-cache")
    wait_until(lambda: engine.tags("kit-base/marked"), seconds=60)
    killed.kill()
    killed.communicate()
    assert lab.images() == []
    made = lab.build()
    assert shell.run(["unsquashfs", "-cat", str(made.image), "app-one"]).stdout == "waiting"
    assert engine.owned_containers() == []
