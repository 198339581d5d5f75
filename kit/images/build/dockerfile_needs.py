"""Reads a Dockerfile before an engine does: the base that its stage uses, and the engine features that it needs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kit.errors import ImageError
from kit.files import untrusted_files
from kit.images.build import dockerfile_arguments, dockerfile_features
from kit.images.build.dockerfile_features import Feature
from kit.images.build.dockerfile_lines import Instruction, directives, instructions

_BASE = frozenset({"${BASE}", "$BASE"})


@dataclass(frozen=True, kw_only=True)
class BuildStage:
    """A FROM line, its stage's name in lower case (a stage without a name is named by its number), and its image with all
    variables replaced; `${BASE}` stays.
    """

    at: Instruction
    name: str
    image: str


@dataclass(frozen=True, kw_only=True)
class Dockerfile:
    """A parsed Dockerfile. steps: all instructions. features: what only BuildKit understands, in the order of the lines.

    automatic: arguments that BuildKit sets by itself and that the classic builder must be given. unpinned: images that are named
    without a digest. syntax: the frontend that a `# syntax=` line names. secrets: id -> the first instruction that mounts it. base:
    the image that the built stage starts from, if the Dockerfile names it itself; otherwise empty. on_base: the FROM lines that
    name it. required: the secrets without which a step fails. downloads: addresses that ADD fetches and whose content nothing pins.
    """

    text: str
    steps: tuple[Instruction, ...]
    features: tuple[Feature, ...]
    automatic: tuple[str, ...]
    unpinned: tuple[str, ...]
    syntax: str
    secrets: Mapping[str, Instruction]
    base: str = ""
    on_base: tuple[Instruction, ...] = ()
    required: frozenset[str] = frozenset()
    downloads: tuple[str, ...] = ()

    @property
    def buildkit(self) -> Instruction | None:
        """The first line that needs BuildKit; None if every builder reads the file alike."""
        return self.features[0].at if self.features else None


def read_dockerfile(
    path: Path, *, target: str | None, args: Mapping[str, str] | None = None, own_base: bool = False
) -> Dockerfile:
    """Read a Dockerfile. args: values of --build-arg. own_base: the Dockerfile names its base itself.

    ImageError when it does not exist, or when without own_base the stage to build does not start from the image's base.
    """
    try:
        text = untrusted_files.read_bytes(path).decode(errors="replace")
    except OSError as error:
        raise ImageError(f"{path}: {error.strerror}", hint="it begins with ARG BASE and FROM ${BASE}") from None
    steps, given = list(instructions(text)), dict(args or {})
    stages = _stages(path, steps, given, frozenset() if own_base else _BASE)
    first = _first_stage(path, stages, target)
    if not own_base:
        _require_base(path, first)
    automatic, puzzle = dockerfile_arguments.automatic(steps, given)
    syntax = next((directive for directive in directives(text) if directive.name == "syntax"), None)
    features = [feature for step in steps if (feature := dockerfile_features.find_feature(step))]
    features += [dockerfile_features.of_argument(puzzle)] if puzzle else []
    if syntax and not dockerfile_features.is_own_frontend(syntax.value):
        features.append(dockerfile_features.of_frontend(syntax))
    secrets = list(_secrets(steps))
    return Dockerfile(
        text=text,
        steps=tuple(steps),
        features=tuple(sorted(features, key=lambda feature: feature.at.line)),
        automatic=automatic,
        syntax=syntax.value if syntax else "",
        secrets={name: step for name, step, _ in reversed(secrets)},
        required=frozenset(name for name, _, required in secrets if required),
        downloads=tuple(dict.fromkeys(address for step in steps for address in _downloads(step))),
        unpinned=_unpinned(steps, stages, first),
        base=first.image if own_base else "",
        on_base=tuple(stage.at for stage in stages if stage.image == first.image),
    )


def _unpinned(found: list[Instruction], stages: list[BuildStage], first: BuildStage) -> tuple[str, ...]:
    """Images other than the base, whose digest is in the lock."""
    names = {stage.name for stage in stages}
    other = [stage.image for stage in stages if stage.image != first.image and stage.image.lower() not in names]
    other += [source for one in found if one.word == "COPY" and (source := _copied_from(one)) not in names]
    return tuple(
        dict.fromkeys(
            image
            for image in other
            if image and image.lower() != "scratch" and "@sha256:" not in image and not image.isdecimal()
        )
    )


def _secrets(steps: list[Instruction]) -> Iterator[tuple[str, Instruction, bool]]:
    """Id of each mounted secret, and whether its step needs it (Dockerfile reference, "RUN --mount=type=secret").

    Without an id, a secret has the name of its target file.
    """
    for step in steps:
        for mount in re.findall(r"--mount=(\S+)", step.rest) if step.word == "RUN" else ():
            options = dict(part.partition("=")[::2] for part in mount.split(","))
            if options.get("type") == "secret":
                target = options.get("target") or options.get("dst") or options.get("destination") or ""
                required = options.get("required", "false").lower() in ("", "true", "1")
                yield options.get("id") or Path(target).name, step, required


def _downloads(one: Instruction) -> Iterator[str]:
    """The addresses of an ADD without a checksum or a commit, without a login in them."""
    if one.word != "ADD" or any(flag.startswith("--checksum=") for flag in one.flags):
        return
    for word in (word.strip("[],\"'") for word in one.words):
        if re.match(r"(https?|git|ssh)://|git@", word) and not re.search(r"#[0-9a-f]{40}(:|$)", word):
            yield re.sub(r"//[^/@]*@", "//", word)


def _stages(path: Path, steps: list[Instruction], given: Mapping[str, str], kept: frozenset[str]) -> list[BuildStage]:
    values = dockerfile_arguments.of_from(steps, given)
    stages = []
    for number, instruction in enumerate(i for i in steps if i.word == "FROM"):
        words = instruction.words
        named = words[2] if len(words) > 2 and words[1].lower() == "as" else str(number)
        raw = words[0] if words else ""
        image = raw if raw in kept else dockerfile_arguments.expand(raw, values)
        unknown = sorted(dockerfile_arguments.names(raw) - values.keys() - set(dockerfile_arguments.AUTOMATIC))
        if not image and unknown:
            problem = f"{path}: line {instruction.line}: FROM {instruction.rest}: {unknown[0]} has no value"
            raise ImageError(problem, hint=f'in image.toml: [build] args = {{ {unknown[0]} = "VALUE" }}')
        stages.append(BuildStage(at=instruction, name=named.lower(), image=image))
    return stages


def _first_stage(path: Path, stages: list[BuildStage], target: str | None) -> BuildStage:
    """The stage whose image the built stage stands on, over all stages between them."""
    if not stages:
        raise ImageError(f"{path}: it has no FROM", hint="begin with ARG BASE and FROM ${BASE}")
    built = [stage for stage in stages if target is None or stage.name == target.lower()]
    if not built:
        raise ImageError(f"{path}: it has no stage {target}", hint=f"stages: {', '.join(base.name for base in stages)}")
    seen: set[str] = set()
    base = built[-1]
    while base.image.lower() in {stage.name for stage in stages} - seen - {base.name}:
        seen.add(base.name)
        base = next(stage for stage in stages if stage.name == base.image.lower())
    return base


def _require_base(path: Path, one: BuildStage) -> None:
    if one.image not in _BASE:
        raise ImageError(
            f"{path}: line {one.at.line}: FROM {one.image} ignores the base that image.toml names and the lock records",
            hint="write ARG BASE and FROM ${BASE}, and in image.toml: [base] reference = "
            + f'"{one.image}"; or take the file as it is: kit build-image {path.parent}',
        )


def _copied_from(copy: Instruction) -> str:
    found = re.search(r"--from=(\S+)", copy.rest)
    return found[1].lower() if found else ""
