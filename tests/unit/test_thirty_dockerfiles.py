"""Thirty Dockerfiles as repositories have them: the plan of each before its first step, or the sentence that refuses it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from kit.errors import ImageError
from kit.images.build import buildkit, dockerfile_needs, repository_context
from kit.schema.image import Build

APT = "RUN apt-get update && apt-get install -y git && rm -rf /var/lib/apt/lists/*\n"
PIP = "RUN pip install --no-cache-dir torch einops\n"
SYNTAX = "# syntax=docker/dockerfile:1\n"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A Dockerfile and its plan. classic: whether the classic builder builds it. copied: files of the repository that it can copy.

    unpinned: images beside the base that have no digest. refused: the sentence instead of a plan. release: of the engine.
    """

    text: str
    base: str = "debian:12"
    classic: bool = True
    copied: str = ""
    unpinned: str = ""
    refused: str = ""
    release: str = "28.2.2"


CASES = {
    "apt": Case(text="FROM debian:12\n" + APT),
    "pip": Case(text="FROM python:3.12\n" + PIP, base="python:3.12"),
    "digest": Case(text=f"FROM debian@sha256:{'0' * 64}\n{APT}", base=f"debian@sha256:{'0' * 64}"),
    "registry-with-port": Case(text="FROM reg.example:5000/team/torch:2\n" + PIP, base="reg.example:5000/team/torch:2"),
    "user": Case(text="FROM debian:12\n" + APT + "RUN useradd me\nUSER me\nWORKDIR /home/me\nCMD bash\n"),
    "shell-form": Case(text='FROM debian:12\nSHELL ["/bin/bash", "-c"]\n' + APT + "ENTRYPOINT exec top\n"),
    "conda": Case(text="FROM conda/base:1\nENV PATH=/opt/conda/bin:$PATH\nRUN conda install -y numpy\n", base="conda/base:1"),
    "long": Case(text="FROM debian:12\nRUN apt-get update \\\n    # tools\n    && apt-get install -y \\\n      git\n"),
    "requirements": Case(text="FROM debian:12\nCOPY requirements.txt /r\n" + PIP, copied="requirements.txt"),
    "all": Case(text="FROM debian:12\n" + APT + "COPY . /app\n", copied="requirements.txt src/a.py src/b.py"),
    "two-sources": Case(
        text="FROM debian:12\nCOPY requirements.txt src /app/\n" + PIP, copied="requirements.txt src/a.py src/b.py"
    ),
    "json": Case(text='FROM debian:12\nCOPY ["src/a.py", "/app/"]\n' + PIP, copied="src/a.py"),
    "owner": Case(text="FROM debian:12\n" + APT + "COPY --chown=1:1 ./src /app\n", copied="src/a.py src/b.py"),
    "pattern": Case(text="FROM debian:12\n" + APT + "COPY src/*.py /app/\n", copied="requirements.txt src/a.py src/b.py"),
    "added": Case(text="FROM debian:12\n" + APT + "ADD src/a.py /app/\n", copied="src/a.py"),
    "stages": Case(
        text="FROM golang:1 AS build\nCOPY src /s\nRUN go get x\nFROM debian:12\n" + APT + "COPY --from=build /s /s\n",
        copied="src/a.py src/b.py",
        unpinned="golang:1",
    ),
    "tool-of-an-image": Case(
        text="FROM debian:12\nCOPY --from=tools/uv:1 /uv /bin/\nRUN uv pip install torch\n", unpinned="tools/uv:1"
    ),
    "version": Case(text="ARG V=12\nFROM debian:${V}\n" + APT),
    "whole-name": Case(text="ARG IMAGE=debian:12\nARG UNUSED\nFROM ${IMAGE} AS run\n" + APT),
    "default-in-place": Case(text="ARG V\nFROM debian:${V:-12}\n" + APT),
    "no-value": Case(text="ARG IMAGE\nFROM ${IMAGE}\n" + APT, refused="line 2: FROM ${IMAGE}: IMAGE has no value"),
    "syntax": Case(text=SYNTAX + "FROM debian:12\n" + APT),
    "syntax-and-cache": Case(
        text=SYNTAX + "FROM debian:12\nRUN --mount=type=cache,target=/root/.cache pip install x\n", classic=False
    ),
    "architecture": Case(text="FROM debian:12\nARG TARGETARCH\nRUN curl -O https://one.example/$TARGETARCH\n"),
    "cross": Case(
        text="FROM --platform=$BUILDPLATFORM golang:1 AS b\nRUN go get x\nFROM debian:12\nCOPY --from=b /x /x\n",
        classic=False,
        unpinned="golang:1",
    ),
    "optional-secret": Case(text="FROM debian:12\nRUN --mount=type=secret,id=token pip install x\n", classic=False),
    "required-secret": Case(
        text="FROM debian:12\nRUN --mount=type=secret,id=token,required=true pip install x\n",
        refused="line 2: image.toml names no secret token",
    ),
    "document": Case(text="FROM debian:12\nRUN <<EOF\napt-get update\nFROM x\nEOF\n", classic=False),
    "document-for-an-old-engine": Case(
        text="FROM debian:12\nRUN <<EOF\napt-get update\nEOF\n",
        release="20.10.24",
        refused="line 2: a here-document needs Docker Engine 23.0 or newer, and this one is 20.10.24",
    ),
    "outside": Case(
        text="FROM debian:12\n" + APT + "COPY ../shared /s\n", refused="line 3: COPY ../shared: it is outside the context"
    ),
}  # fmt: skip


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    for name in ("src/a.py", "src/b.py", "requirements.txt", "data/big", ".git/config"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / ".dockerignore").write_text("# large\ndata\n.git\n.dockerignore\n")
    return tmp_path


def planned(repo: Path, one: Case) -> tuple[dockerfile_needs.Dockerfile, set[str]]:
    """What is known before the first step, in the order of `kit build-image`."""
    file = repo / "Dockerfile"
    file.write_text(one.text)
    needs = dockerfile_needs.read_dockerfile(file, target=None, own_base=True)
    buildkit.agree(repo / "image.toml", file, needs, Build())
    files = repository_context.scan(repo, file, needs.steps, without=repo / "containers/x")
    if needs.buildkit is not None:
        _, fetched = buildkit._frontend(file, needs, one.release)
        assert fetched == "", "the engine's own frontend"
    # An engine applies the ignore file once more, and then leaves it out, too.
    return needs, {file.name for file in files} - {"Dockerfile", ".dockerignore"}


@pytest.mark.parametrize("name", [name for name, one in CASES.items() if not one.refused])
def test_it_is_planned(repo: Path, name: str) -> None:
    one = CASES[name]
    needs, files = planned(repo, one)
    assert (needs.base, needs.unpinned) == (one.base, tuple(one.unpinned.split()))
    assert (needs.buildkit is None) == one.classic
    assert files == {*one.copied.split()}


@pytest.mark.parametrize("name", [name for name, one in CASES.items() if one.refused])
def test_it_is_refused_before_the_first_step(repo: Path, name: str) -> None:
    with pytest.raises(ImageError, match=re.escape(CASES[name].refused)) as caught:
        planned(repo, CASES[name])
    assert caught.value.hint


@pytest.mark.parametrize(
    ("feature", "found_in_152"),
    [
        (r"^RUN .*(apt-get|pip|conda|curl|go get)|^apt-get", 150),
        (r"^(COPY|ADD) (?!.*--from)", 49),
        (r"^ARG (?!TARGET)[\s\S]*^FROM .*\$", 19),
        (r"\A# syntax=", 10),
        (r"TARGETARCH|BUILDPLATFORM", 7),
        (r"type=secret", 7),
    ],
)
def test_the_features_are_as_frequent_as_in_real_files(feature: str, found_in_152: int) -> None:
    assert len(CASES) == 30
    having = [name for name, one in CASES.items() if re.search(feature, one.text, re.MULTILINE)]
    assert abs(len(having) - 30 * found_in_152 / 152) <= 1
