"""Features of a Dockerfile that the classic builder lacks, and the Docker Engine whose own BuildKit has them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kit.images.build.dockerfile_lines import Directive, Instruction

# Flag -> the first Docker Engine whose own frontend reads it (release notes of the Dockerfile frontend and of Docker Engine).
_FLAGS = {
    "RUN": {"mount": 20, "network": 23, "security": 0},
    "COPY": {"chmod": 20, "link": 23, "exclude": 29, "parents": 29},
    "ADD": {"chmod": 20, "link": 23, "checksum": 25, "keep-git-dir": 25, "exclude": 29, "unpack": 29},
}
_HEREDOC_RELEASE = 23
_GIT_RELEASE = 25
_GIT = re.compile(r"git@\S+:\S+|git://\S+|https?://\S+\.git(#\S*)?")
# The frontend that every engine has, under its names in the registry. Others may be other languages.
_OWN = re.compile(r"(docker\.io/)?docker/dockerfile(-upstream)?([:@]\S+)?")


@dataclass(frozen=True, kw_only=True)
class Feature:
    """What an instruction needs. instead: how to write it without BuildKit. release: the first Docker Engine that has it, as its
    major version; 0 if no engine allows it.
    """

    at: Instruction
    what: str
    instead: str
    release: int


def find_feature(instruction: Instruction) -> Feature | None:
    """What the instruction needs of BuildKit; the newest of several. None: every builder reads it alike."""
    features = []
    if instruction.heredoc:
        instead = "write the lines as one RUN, joined with && and a backslash"
        features.append(Feature(at=instruction, what="a here-document", instead=instead, release=_HEREDOC_RELEASE))
    for flag in instruction.flags:
        name = flag.removeprefix("--").partition("=")[0]
        release = _FLAGS.get(instruction.word, {}).get(name)
        if release is not None:
            features.append(
                Feature(
                    at=instruction,
                    what=f"{instruction.word} --{name}",
                    instead=_without(instruction, name),
                    release=release,
                )
            )
    if instruction.word == "ADD" and any(_GIT.fullmatch(word.strip("\"'")) for word in instruction.words):
        instead = "clone the repository on this machine, and COPY it"
        features.append(Feature(at=instruction, what="ADD of a Git repository", instead=instead, release=_GIT_RELEASE))
    return max(features, key=lambda feature: feature.release or 1_000, default=None)


def of_argument(one: Instruction) -> Feature:
    """What a line needs that reads an automatic argument as only BuildKit can."""
    what = f"{one.word} {one.rest}: an argument that only BuildKit sets"
    return Feature(at=one, what=what, instead="name the value in [build] args of image.toml", release=20)


def of_frontend(one: Directive) -> Feature:
    """What a `# syntax=` line needs that names another frontend than the engine's own: it may read another language."""
    at = Instruction(line=one.line, word="#", rest=f"syntax={one.value}", last=one.line)
    instead = "remove the line, if the file is a plain Dockerfile"
    return Feature(at=at, what=f"the frontend {one.value}", instead=instead, release=20)


def is_own_frontend(syntax: str) -> bool:
    """Whether a `# syntax=` line names the frontend that every engine has."""
    return _OWN.fullmatch(syntax) is not None


def _without(one: Instruction, flag: str) -> str:
    if flag == "mount":
        return "do without: packages come from wheels/, which needs no cache, and a job has [secrets]"
    return f"write the {one.word} without --{flag}"
