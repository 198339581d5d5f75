"""What a Dockerfile says before an engine reads it: which base it stands on, and what it needs of the engine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kit.errors import ImageError

_BASE = frozenset({"${BASE}", "$BASE"})
_HEREDOC = re.compile(r"<<-?\s*[\"']?([A-Za-z_][A-Za-z0-9_]*)[\"']?")


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One instruction, its continued lines joined. heredoc: whether it has a here-document."""

    line: int
    word: str
    rest: str
    heredoc: bool = False


@dataclass(frozen=True, kw_only=True)
class Dockerfile:
    """buildkit: the first instruction that only BuildKit understands. unpinned: images that are named without a
    digest. steps: all instructions."""

    buildkit: Instruction | None
    unpinned: tuple[str, ...]
    steps: tuple[Instruction, ...]


def read(path: Path, *, target: str | None) -> Dockerfile:
    """Read a Dockerfile. ImageError when there is none, and when the stage that is built does not stand on the image's base."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ImageError(f"{path}: {error.strerror}", hint="it begins with ARG BASE and FROM ${BASE}") from None
    found = list(instructions(text))
    stages = _stages(found)
    _must_stand_on_base(path, stages, target)
    names = {name for _, name, _ in stages}
    own = names | {"scratch"}
    other = [image for _, _, image in stages if image not in _BASE and image.lower() not in own]
    other += [source for i in found if i.word == "COPY" and (source := _copied_from(i)) and source not in names]
    return Dockerfile(
        steps=tuple(found),
        buildkit=next(
            (i for i in found if i.heredoc or (i.word == "RUN" and re.match(r"(--\w+\S*\s+)*--mount", i.rest))), None
        ),
        unpinned=tuple(dict.fromkeys(image for image in other if "@sha256:" not in image and not image.isdecimal())),
    )


def instructions(text: str) -> Iterator[Instruction]:
    """The instructions in their order, without comments."""
    escape = re.search(r"^#\s*escape\s*=\s*(\S)", text, re.MULTILINE | re.IGNORECASE)
    sign = escape[1] if escape else "\\"
    lines = enumerate(text.splitlines(), start=1)
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        whole = line.strip()
        while whole.endswith(sign):
            _, more = next(lines, (0, ""))
            whole = whole[:-1] + ("" if more.lstrip().startswith("#") else more.strip())
            if more.lstrip().startswith("#"):
                whole += sign
        word, _, rest = whole.partition(" ")
        ends = _HEREDOC.findall(rest) if word.upper() in ("RUN", "COPY", "ADD") and "<<<" not in rest else []
        for end in ends:
            for _, inner in lines:
                if inner.strip() == end:
                    break
        yield Instruction(line=number, word=word.upper(), rest=rest.strip(), heredoc=bool(ends))


def _stages(found: list[Instruction]) -> list[tuple[Instruction, str, str]]:
    """(FROM, name, image) of each stage; one without a name has its number."""
    stages = []
    for number, one in enumerate(i for i in found if i.word == "FROM"):
        words = [word for word in one.rest.split() if not word.startswith("--")]
        named = words[2] if len(words) > 2 and words[1].lower() == "as" else str(number)
        stages.append((one, named.lower(), words[0] if words else ""))
    return stages


def _must_stand_on_base(path: Path, stages: list[tuple[Instruction, str, str]], target: str | None) -> None:
    if not stages:
        raise ImageError(f"{path}: it has no FROM", hint="begin with ARG BASE and FROM ${BASE}")
    built = [stage for stage in stages if target is None or stage[1] == target.lower()]
    if not built:
        raise ImageError(
            f"{path}: it has no stage {target}", hint=f"stages: {', '.join(name for _, name, _ in stages)}"
        )
    seen: set[str] = set()
    one, name, image = built[-1]
    while image.lower() in {stage[1] for stage in stages} - seen - {name}:
        seen.add(name)
        one, name, image = next(stage for stage in stages if stage[1] == image.lower())
    if image not in _BASE:
        raise ImageError(
            f"{path}: line {one.line}: FROM {image}: the image would not stand on the base of its image.toml, which the lock names",
            hint="write ARG BASE and FROM ${BASE}, and name the base in image.toml: [base] reference = " + f'"{image}"',
        )


def _copied_from(copy: Instruction) -> str:
    found = re.search(r"--from=(\S+)", copy.rest)
    return found[1].lower() if found else ""
