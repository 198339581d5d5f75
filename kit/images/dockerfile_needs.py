"""Reads a Dockerfile before an engine does: the base that its stage uses, and the engine features that it needs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kit.errors import ImageError

_BASE = frozenset({"${BASE}", "$BASE"})
# Flags that the classic builder does not know (Docker's Dockerfile reference, "Dockerfile frontend syntaxes").
_MODERN = {
    "RUN": ("mount", "network", "security"),
    "COPY": ("chmod", "exclude", "link", "parents"),
    "ADD": ("checksum", "chmod", "exclude", "keep-git-dir", "link", "unpack"),
}
_HEREDOC = re.compile(r"<<-?\s*[\"']?([A-Za-z_][A-Za-z0-9_]*)[\"']?")


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One instruction, with its continuation lines joined. heredoc: whether it has a here-document."""

    line: int
    word: str
    rest: str
    heredoc: bool = False


@dataclass(frozen=True, kw_only=True)
class Dockerfile:
    """A parsed Dockerfile. steps: all instructions. buildkit: the first instruction that only BuildKit understands.

    heredoc: the first instruction with a here-document. unpinned: images that are named without a digest. syntax: the frontend that
    a `# syntax=` line names; BuildKit fetches it, and the classic builder ignores the line. secrets: id -> the first instruction
    that mounts the secret.
    """

    buildkit: Instruction | None
    heredoc: Instruction | None
    unpinned: tuple[str, ...]
    steps: tuple[Instruction, ...]
    syntax: str
    secrets: Mapping[str, Instruction]


def read(path: Path, *, target: str | None) -> Dockerfile:
    """Read a Dockerfile. ImageError when it does not exist, or when the stage to build does not start from the image's base."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ImageError(f"{path}: {error.strerror}", hint="it begins with ARG BASE and FROM ${BASE}") from None
    found = list(instructions(text))
    stages = _stages(found)
    _require_base(path, stages, target)
    names = {name for _, name, _ in stages}
    own = names | {"scratch"}
    other = [image for _, _, image in stages if image not in _BASE and image.lower() not in own]
    other += [source for i in found if i.word == "COPY" and (source := _copied_from(i)) and source not in names]
    syntax = _syntax(text)
    buildkit = next((i for i in found if i.heredoc or modern_flag(i)), None)
    if syntax and buildkit:
        other.append(syntax)
    return Dockerfile(
        steps=tuple(found),
        buildkit=buildkit,
        heredoc=next((i for i in found if i.heredoc), None),
        syntax=syntax,
        secrets=_secrets(found),
        unpinned=tuple(dict.fromkeys(image for image in other if "@sha256:" not in image and not image.isdecimal())),
    )


def modern_flag(one: Instruction) -> str:
    """The first flag of the instruction that only BuildKit knows, as `--mount`; empty if there is none."""
    flags = re.match(r"(?:--\S+\s+)*", one.rest)
    for flag in (flags[0] if flags else "").split():
        name = flag.removeprefix("--").partition("=")[0]
        if name in _MODERN.get(one.word, ()):
            return f"--{name}"
    return ""


def _secrets(found: list[Instruction]) -> dict[str, Instruction]:
    """Secrets by id. Without an id, a secret has the name of its target file (Dockerfile reference, "RUN --mount=type=secret")."""
    mounted: dict[str, Instruction] = {}
    for one in found:
        for mount in re.findall(r"--mount=(\S+)", one.rest) if one.word == "RUN" else ():
            options = dict(part.partition("=")[::2] for part in mount.split(","))
            if options.get("type") == "secret":
                target = options.get("target") or options.get("dst") or options.get("destination") or ""
                mounted.setdefault(options.get("id") or Path(target).name, one)
    return mounted


def _syntax(text: str) -> str:
    """The frontend of a `# syntax=` line. It counts only among the comments at the start of the file."""
    for line in text.splitlines():
        directive = re.match(r"#\s*(\w+)\s*=\s*(\S+)\s*$", line.strip())
        if directive is None:
            return ""
        if directive[1].lower() == "syntax":
            return directive[2]
    return ""


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
    """(FROM, name, image) of each stage. A stage without a name is named by its number."""
    stages = []
    for number, one in enumerate(i for i in found if i.word == "FROM"):
        words = [word for word in one.rest.split() if not word.startswith("--")]
        named = words[2] if len(words) > 2 and words[1].lower() == "as" else str(number)
        stages.append((one, named.lower(), words[0] if words else ""))
    return stages


def _require_base(path: Path, stages: list[tuple[Instruction, str, str]], target: str | None) -> None:
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
            f"{path}: line {one.line}: FROM {image} ignores the base that image.toml names and the lock records",
            hint="write ARG BASE and FROM ${BASE}, and in image.toml: [base] reference = " + f'"{image}"',
        )


def _copied_from(copy: Instruction) -> str:
    found = re.search(r"--from=(\S+)", copy.rest)
    return found[1].lower() if found else ""
