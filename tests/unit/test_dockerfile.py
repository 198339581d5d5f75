"""A Dockerfile before its build: lines, variables, what only BuildKit understands, and why a step failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.errors import ImageError
from kit.images.build import buildkit, dockerfile_arguments, dockerfile_features, dockerfile_lines, dockerfile_needs
from kit.images.sources import build_failure
from kit.images.sources.build_failure import FailedBuild

HEAD = "ARG BASE\nFROM ${BASE}\n"


def read(work: Path, text: str, **args: str) -> dockerfile_needs.Dockerfile:
    (work / "Dockerfile").write_text(text)
    return dockerfile_needs.read_dockerfile(work / "Dockerfile", target=None, args=args)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("RUN a \\\n\n  # words\n  && b\nRUN c\n", [("RUN", "a && b", 1, 4), ("RUN", "c", 5, 5)]),
        ("RUN <<A && cat <<'B'\nRUN x\nA\nFROM y\nB\nRUN c\n", [("RUN", "<<A && cat <<'B'", 1, 5), ("RUN", "c", 6, 6)]),
        ("RUN a $((1<<n)) \"b <<E\" << E\nRUN c\n", [("RUN", 'a $((1<<n)) "b <<E" << E', 1, 1), ("RUN", "c", 2, 2)]),
        ("# escape=`\nRUN a `\n b\n", [("RUN", "a b", 2, 3)]),
        ("RUN true\n# escape=`\nRUN a \\\n b\n", [("RUN", "true", 1, 1), ("RUN", "a b", 3, 4)]),
        ("RUN a \\", [("RUN", "a", 1, 1)]),
    ],
)  # fmt: skip
def test_instructions_end_where_docker_ends_them(text: str, found: list[tuple[str, str, int, int]]) -> None:
    steps = dockerfile_lines.instructions(text)
    assert [(one.word, " ".join(one.rest.split()), one.line, one.last) for one in steps] == found


def test_a_directive_counts_only_at_the_start_and_its_removal_moves_no_line() -> None:
    text = "# syntax=docker/dockerfile:1\n# escape=`\nFROM x\n# syntax=other\n"
    assert [(one.name, one.value) for one in dockerfile_lines.directives(text)] == [
        ("syntax", "docker/dockerfile:1"),
        ("escape", "`"),
    ]
    assert dockerfile_lines.without(text, "syntax") == "# escape=`\n#\nFROM x\n# syntax=other\n"
    assert dockerfile_lines.directives("FROM x\n# syntax=docker/dockerfile:1\n") == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$A:1", "one:1"), ("${A}b", "oneb"), ("${NO}", ""), ("${NO:-d}", "d"), ("${NO-d}", "d"), ("${EMPTY-d}", ""),
        ("${EMPTY:-d}", "d"), ("${A:+x}", "x"), ("${NO:+x}", ""), ("${EMPTY+x}", "x"), ("${NO:-${A}-${B:-c}}", "one-two"),
        ('"$A"', "one"), ("\\$A", "$A"), ("plain@sha256:0", "plain@sha256:0"),
    ],
)  # fmt: skip
def test_variables_of_a_from_line(text: str, value: str) -> None:
    assert dockerfile_arguments.expand(text, {"A": "one", "B": "two", "EMPTY": ""}) == value


def test_arguments_before_from_use_each_other_and_what_is_given() -> None:
    text = 'ARG TAG=12 NAME="debian"\nARG IMAGE=${NAME}:${TAG}\nARG BARE\nFROM ${IMAGE}\nARG LATE=x\n'
    steps = [*dockerfile_lines.instructions(text)]
    assert dockerfile_arguments.of_from(steps, {}) == {"TAG": "12", "NAME": "debian", "IMAGE": "debian:12"}
    given = dockerfile_arguments.of_from(steps, {"TAG": "13", "BARE": "b", "LATE": "no", "UNDECLARED": "no"})
    assert given == {"TAG": "13", "NAME": "debian", "IMAGE": "debian:13", "BARE": "b"}


@pytest.mark.parametrize(
    ("text", "passed", "line"),
    [
        (HEAD + "ARG TARGETARCH\nARG BUILDPLATFORM OTHER=1\n", ("TARGETARCH", "BUILDPLATFORM"), None),
        (HEAD + "ARG TARGETARCH=amd64\n", (), None),
        (HEAD + "ARG TARGETARCH\nARG TARGETARCH=amd64\n", ("TARGETARCH",), 4),
        ("ARG TARGETARCH\n" + HEAD, (), 1),
        ("ARG BASE\nARG X=tool-${TARGETARCH}\nFROM ${BASE}\n", (), 2),
        ("ARG BASE\nFROM --platform=${BUILDPLATFORM:-x} ${BASE}\n", (), 2),
        (HEAD + "RUN echo $TARGETARCH\n", (), None),
    ],
)
def test_what_buildkit_sets_by_itself_is_given_or_needs_buildkit(
    tmp_path: Path, text: str, passed: tuple[str, ...], line: int | None
) -> None:
    found = read(tmp_path, text)
    assert found.automatic == passed
    assert (found.buildkit.line if found.buildkit else None) == line


def test_a_value_that_the_user_gives_counts_everywhere(tmp_path: Path) -> None:
    found = read(tmp_path, "ARG BASE\nARG TARGETARCH\nFROM ${BASE}\nARG TARGETARCH\n", TARGETARCH="arm64")
    assert (found.automatic, found.buildkit) == ((), None)


@pytest.mark.parametrize(
    ("target", "platform", "arch", "variant"),
    [
        ("linux/amd64", "linux/amd64", "amd64", ""),
        ("linux/arm64/v8", "linux/arm64", "arm64", ""),
        ("linux/arm", "linux/arm/v7", "arm", "v7"),
        ("linux/amd64/v3", "linux/amd64/v3", "amd64", "v3"),
    ],
)
def test_platforms_are_those_of_buildkit(target: str, platform: str, arch: str, variant: str) -> None:
    found = dockerfile_arguments.values(dockerfile_arguments.AUTOMATIC, target=target, build="linux/amd64")
    assert (found["TARGETPLATFORM"], found["TARGETARCH"], found["TARGETVARIANT"]) == (platform, arch, variant)
    assert (found["BUILDPLATFORM"], found["TARGETOS"], found["BUILDVARIANT"]) == ("linux/amd64", "linux", "")


@pytest.mark.parametrize(
    ("line", "what", "release"),
    [
        ("RUN --mount=type=cache,target=/x true", "RUN --mount", 20),
        ("RUN --mount=type=cache,target=/x --network=none true", "RUN --network", 23),
        ("RUN --security=insecure true", "RUN --security", 0),
        ("COPY --chmod=644 --link a /a", "COPY --link", 23),
        ("ADD --checksum=sha256:0 https://reg/x /x", "ADD --checksum", 25),
        ("ADD https://reg/x.git#main /x", "ADD of a Git repository", 25),
        ("COPY <<EOF /x\nwords\nEOF", "a here-document", 23),
    ],
)
def test_the_newest_feature_of_a_line_decides(line: str, what: str, release: int) -> None:
    (one,) = dockerfile_lines.instructions(line)
    found = dockerfile_features.find_feature(one)
    assert found is not None
    assert (found.what, found.release) == (what, release)
    for plain in ("RUN --mounted", "RUN echo --mount=x", "COPY --chown=1:1 x /--chmod", "ADD https://reg/x.tar /x"):
        (one,) = dockerfile_lines.instructions(plain)
        assert dockerfile_features.find_feature(one) is None


SYNTAX = "# syntax=docker/dockerfile:1\n"
HEREDOC = "RUN <<E\ntrue\nE\n"
MOUNT = "RUN --mount=type=tmpfs,target=/x true\n"


@pytest.mark.parametrize(
    ("text", "engine", "fetched", "kept"),
    [
        (SYNTAX + HEAD + MOUNT, "20.10.24", "", False),
        (SYNTAX + HEAD + HEREDOC, "20.10.24", "docker/dockerfile:1", True),
        (SYNTAX + HEAD + HEREDOC, "28.2.2", "", False),
        (SYNTAX.replace("docker/", "other/", 1) + HEAD, "28.2.2", "other/dockerfile:1", True),
        (HEAD + HEREDOC, "28.2.2", "", False),
    ],
)
def test_a_frontend_is_fetched_only_where_the_engines_own_does_not_do(
    tmp_path: Path, text: str, engine: str, fetched: str, kept: bool
) -> None:
    sent, named = buildkit._frontend(tmp_path / "Dockerfile", read(tmp_path, text), engine)
    assert (named, "syntax" in sent) == (fetched, kept)
    assert len(sent.splitlines()) == len(text.splitlines())


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (HEREDOC, "line 3: a here-document needs Docker Engine 23.0 or newer, and this one is 20.10.24"),
        ("COPY --link a /a\n", "line 3: COPY --link needs Docker Engine 23.0 or newer"),
        ("RUN --security=insecure true\n", "line 3: RUN --security needs rights that no engine gives"),
    ],
)
def test_what_no_builder_here_can_do_is_refused_with_its_line(tmp_path: Path, step: str, said: str) -> None:
    with pytest.raises(ImageError, match=said):
        buildkit._frontend(tmp_path / "Dockerfile", read(tmp_path, HEAD + step), "20.10.24")


@pytest.mark.parametrize(
    "line",
    [
        "E: Unable to locate package git",
        "Temporary failure resolving 'deb.debian.org'",
        "curl: (6) Could not resolve host: example.org",
        "socket.gaierror: [Errno -3] Temporary failure in name resolution",
        "wget: bad address 'example.org'",
        "npm error code EAI_AGAIN",
    ],
)
def test_a_step_without_a_network_is_told_about_the_key(line: str) -> None:
    failure = FailedBuild(step="Step 3/4 : RUN apt-get install git", printed=["first", line], verdict="exit code 100")
    said = build_failure.error(failure, network="none")
    assert said.message.splitlines() == [
        "the build failed at Step 3/4 : RUN apt-get install git", "  first", f"  {line}", "  exit code 100",
    ]  # fmt: skip
    assert '[build] network = "default"' in said.hint
    assert "reproducible = false" in said.hint
    assert 'network = "host"' in build_failure.error(failure, network="default").hint
    assert "it reaches the address" in build_failure.error(failure, network="host").hint


@pytest.mark.parametrize(
    ("step", "line", "hint"),
    [
        ("Step 2/3 : RUN gcc x.c", "/bin/sh: 1: gcc: not found", "the base has no gcc"),
        ("RUN make", "/bin/bash: line 1: make: command not found", "the base has no make"),
        ("RUN true", "exec /bin/sh: exec format error", "the base is for another platform"),
        ("RUN make", "make: *** No rule to make target 'x'.", "change the Dockerfile"),
        ("COPY a /a", "a: not found", "change the Dockerfile"),
    ],
)
def test_the_hint_tells_the_base_from_the_file(step: str, line: str, hint: str) -> None:
    said = build_failure.error(
        FailedBuild(step=step, printed=[*"abcdefghijk", line], verdict="exit code 1"), network="none"
    )
    assert said.hint.startswith(hint)
    assert [one.strip() for one in said.message.splitlines()[1:]] == [*"cdefghijk", line, "exit code 1"]


def test_another_failure_names_no_network_and_has_no_escapes() -> None:
    printed = ["\x1b[31merror:\x1b[0m no such file", " 10%\r 90%\r100%"]
    said = build_failure.error(FailedBuild(step="COPY a /a", printed=printed, verdict="not found"), network="none")
    assert said.message == "the build failed at COPY a /a\n  error: no such file\n  100%\n  not found"
    assert "network" not in said.hint
    pull = FailedBuild(step="FROM reg/x", printed=(), verdict="dial tcp: no such host")
    assert "[base] bootstrap" in build_failure.error(pull, network="none").hint
