"""A repository's own Dockerfile: what it copies, what is outside or excluded, and the image.toml that names it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from pydantic import ValidationError

from kit.config import load_model
from kit.errors import ConfigError, ImageError, UsageError
from kit.images.build import build_context, dockerfile_needs, repository_context, repository_image
from kit.images.build.repository_image import RepositoryOptions
from kit.schema.image import ImageSpec

HEAD = "FROM debian:12\n"


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    made = tmp_path / "My Repo"
    for name in ("src/a.py", "src/sub/b.py", "data/big", "README.md", "Dockerfile", "containers/mine/image.toml"):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(name)
    (made / "runs/first").mkdir(parents=True)
    for name in ("batch.sh", "manifest.json", "log"):
        (made / "runs/first" / name).write_text("")
    return made


def scan(repo: Path, steps: str, dockerfile: str = "Dockerfile") -> set[str]:
    file = repo / dockerfile
    file.parent.mkdir(exist_ok=True)
    file.write_text(HEAD + steps)
    needs = dockerfile_needs.read_dockerfile(file, target=None, own_base=True)
    found = repository_context.scan(repo, file, needs.steps, without=repo / "containers/mine")
    return {one.name for one in found}


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ("RUN true\n", set()),
        ("COPY src /src\n", {"src/a.py", "src/sub/b.py"}),
        ("COPY --chown=1:1 ./src/a.py README.md /src/\n", {"src/a.py", "README.md"}),
        ('COPY ["/src/sub", "/x"]\n', {"src/sub/b.py"}),
        ("COPY --from=0 /nothing /x\nADD https://reg/x /x\n", set()),
        ("COPY . .\n", {"src/a.py", "src/sub/b.py", "data/big", "README.md"}),
        ("COPY *.md /x/\n", {"src/a.py", "src/sub/b.py", "data/big", "README.md"}),
        ("RUN --mount=target=/x true\n", {"src/a.py", "src/sub/b.py", "data/big", "README.md"}),
        ("RUN --mount=type=cache,target=/x true\n", set()),
        ("COPY <<E /x\nsrc\nE\n", set()),
    ],
)
def test_the_context_is_what_the_dockerfile_can_copy(repo: Path, steps: str, found: set[str]) -> None:
    assert scan(repo, steps) == found | {"Dockerfile"}


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ("COPY ../secret /x\n", "line 2: COPY ../secret: it is outside the context"),
        ("COPY src/../../secret /x\n", "outside the context"),
        ("RUN true\nADD missing.py /x\n", "line 3: ADD missing.py: no such file in the context"),
        ("COPY data/big /x\n", r"\.dockerignore excludes the file"),
    ],
)
def test_what_cannot_be_copied_is_said_before_the_build(repo: Path, steps: str, said: str) -> None:
    (repo / ".dockerignore").write_text("data\n")
    with pytest.raises(ImageError, match=said):
        scan(repo, steps)


def test_both_kinds_of_ignore_files(repo: Path) -> None:
    (repo / ".dockerignore").write_text("**\n!src/sub\nDockerfile\n")
    # The Dockerfile is sent although it is excluded; the ignore file is not, since an engine would apply it once more.
    assert scan(repo, "COPY . .\n") == {"src/sub/b.py", "Dockerfile"}
    (repo / "docker").mkdir()
    (repo / "docker/Dockerfile.dockerignore").write_text("src\ncontainers\n")
    found = scan(repo, "COPY . .\n", "docker/Dockerfile")
    assert {"docker/Dockerfile", ".dockerignore", "data/big"} <= found
    assert not {"src/a.py", "runs/first/log", "containers/mine/image.toml"} & found


def test_a_dockerfile_outside_the_context_is_refused(repo: Path) -> None:
    with pytest.raises(ImageError, match="the Dockerfile is outside the context"):
        repository_context.scan(repo / "src", repo / "Dockerfile", [], without=repo)
    with pytest.raises(ImageError, match="no such folder"):
        repository_context.scan(repo / "none", repo / "none/Dockerfile", [], without=repo)


@pytest.mark.parametrize(
    ("text", "target", "base", "unpinned"),
    [
        ("FROM debian:12\n", None, "debian:12", ()),
        ("ARG BASE=debian\nARG TAG=13\nFROM ${BASE}:${TAG} AS a\nFROM a\nFROM go AS b\n", "1", "debian:13", ("go",)),
        ("ARG BASE=debian:12\nFROM ${BASE}\n", None, "debian:12", ()),
        ("FROM scratch\nCOPY src /\n", None, "scratch", ()),
        ("FROM go:1 AS build\nFROM debian:12\nCOPY --from=build /x /x\n", None, "debian:12", ("go:1",)),
    ],
)
def test_a_repositorys_dockerfile_names_its_base(
    tmp_path: Path, text: str, target: str | None, base: str, unpinned: tuple[str, ...]
) -> None:
    (tmp_path / "Dockerfile").write_text(text)
    found = dockerfile_needs.read_dockerfile(tmp_path / "Dockerfile", target=target, own_base=True)
    assert (found.base, found.unpinned) == (base, unpinned)


def test_an_image_of_a_repository_is_written_once(repo: Path) -> None:
    wanted = RepositoryOptions(context=repo, target="run", args={"A": "b"}, platform="linux/arm64")
    assert repository_image.write_image_toml(wanted, repo) == "my-repo"
    toml = repo / "containers/my-repo/image.toml"
    build = load_model(toml, ImageSpec).build
    assert (build.context, build.dockerfile, build.target, build.args, build.network, build.platform) == (
        "../..", "Dockerfile", "run", {"A": "b"}, "default", "linux/arm64",
    )  # fmt: skip
    written = toml.read_text()
    assert repository_image.write_image_toml(RepositoryOptions(context=repo), repo) == "my-repo"
    with pytest.raises(UsageError, match=r"build\.network is 'default', and the command line says 'host'"):
        repository_image.write_image_toml(RepositoryOptions(context=repo, network="host"), repo)
    assert toml.read_text() == written
    (repo / "Dockerfile").rename(repo / "src/Containerfile")
    with pytest.raises(ConfigError, match="no Dockerfile in this folder"):
        repository_image.write_image_toml(RepositoryOptions(context=repo), repo)
    file = repo / "src/Containerfile"
    assert repository_image.write_image_toml(RepositoryOptions(context=repo, file=file, name="other"), repo) == "other"
    assert load_model(repo / "containers/other/image.toml", ImageSpec).build.dockerfile == "src/Containerfile"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("ADD https://user:word@one.example/x.tar /x", ("https://one.example/x.tar",)),
        ("ADD --checksum=sha256:0 https://one.example/x.tar /x", ()),
        (f"ADD https://one.example/x.git#{'0' * 40}:src /x", ()),
        ("ADD https://one.example/x.git#main /x", ("https://one.example/x.git#main",)),
        ('ADD ["src", "git@one.example:x.git", "/x"]', ("git@one.example:x.git",)),
        ("RUN curl https://one.example/x", ()),
    ],
)
def test_what_add_fetches_and_nothing_pins_is_an_outside_input(
    tmp_path: Path, line: str, found: tuple[str, ...]
) -> None:
    (tmp_path / "Dockerfile").write_text(HEAD + line + "\n")
    assert dockerfile_needs.read_dockerfile(tmp_path / "Dockerfile", target=None, own_base=True).downloads == found


def test_the_places_of_context_and_dockerfile_decide_nothing(repo: Path) -> None:
    def digest(context: str, dockerfile: str, **more: object) -> str:
        spec = ImageSpec.model_validate({"build": {"context": context, "dockerfile": dockerfile, **more}})
        return build_context.digest(spec, ())

    assert digest("..", "Dockerfile") == digest("../..", "docker/Dockerfile")
    assert digest("..", "Dockerfile") != digest("..", "Dockerfile", target="x")
    # The digest of an image whose folder is its context is that of earlier kits.
    plain = ImageSpec.model_validate({"base": {"reference": "x"}})
    text = '{"files": [], "recipe": 2, "spec": {"base": {"reference": "x"}}}'
    assert build_context.digest(plain, ()) == hashlib.sha256(text.encode()).hexdigest()


def test_an_image_needs_a_base_or_a_context() -> None:
    with pytest.raises(ValidationError, match="the image has no base"):
        ImageSpec.model_validate({"description": "x"})
    with pytest.raises(ValidationError, match="wheels/ is not in its context"):
        ImageSpec.model_validate({"build": {"context": ".."}, "python": {}})
