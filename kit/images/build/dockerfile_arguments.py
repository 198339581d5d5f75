"""Arguments of a Dockerfile: the values of ARG lines before the first FROM, and the arguments that BuildKit sets by itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from kit.images.build.dockerfile_lines import Instruction

# Dockerfile reference, "Automatic platform ARGs in the global scope". The classic builder does not set them.
AUTOMATIC = tuple(f"{side}{what}" for side in ("TARGET", "BUILD") for what in ("PLATFORM", "OS", "ARCH", "VARIANT"))

_VARIABLE = re.compile(
    r"\\(?P<escaped>.)|\$(?:(?P<bare>\w+)|\{(?P<name>\w+)(?:(?P<sign>:?[-+])(?P<word>(?:[^{}]|\{[^{}]*\})*))?\})"
)


def expand(text: str, values: Mapping[str, str]) -> str:
    """The text with its variables replaced, in the forms `$A`, `${A}`, `${A:-word}` and `${A:+word}`, and without its quotes.

    A variable without a value is empty, as in Docker.
    """

    def value(match: re.Match[str]) -> str:
        if match["escaped"] is not None:
            return match["escaped"]
        name, sign = match["bare"] or match["name"], match["sign"] or ""
        known = values.get(name)
        has_value = bool(known) if sign.startswith(":") else known is not None
        if sign.endswith("-"):
            return known or "" if has_value else expand(match["word"], values)
        if sign.endswith("+"):
            return expand(match["word"], values) if has_value else ""
        return known or ""

    return _VARIABLE.sub(value, text.replace('"', "").replace("'", ""))


def names(text: str) -> set[str]:
    """The variables in a text, also those inside the default of another."""
    found: set[str] = set()
    for one in _VARIABLE.finditer(text):
        found |= {one["bare"] or one["name"] or ""} | names(one["word"] or "")
    return found - {""}


def declared(one: Instruction) -> list[tuple[str, str | None]]:
    """Name and default of each argument of an ARG line. None: it has no default."""
    pairs = (word.partition("=") for word in one.words)
    return [(name, value if equals else None) for name, equals, value in pairs]


def of_from(found: Iterable[Instruction], given: Mapping[str, str]) -> dict[str, str]:
    """Values of the arguments that FROM lines can use. given: the values of --build-arg; only declared arguments take them."""
    values: dict[str, str] = {}
    for one in _before_from(found):
        for name, default in declared(one):
            if name in given:
                values[name] = given[name]
            elif default is not None:
                values[name] = expand(default, values)
    return values


def automatic(
    instructions: Iterable[Instruction], given: Mapping[str, str]
) -> tuple[tuple[str, ...], Instruction | None]:
    """The automatic arguments that stages declare, and the first line whose meaning only BuildKit knows.

    A stage's `ARG TARGETARCH` can be given its value. A default, a FROM line, and an ARG line before it read values in ways that no
    given value can imitate. given: values of --build-arg, which count in every builder.
    """
    instructions = list(instructions)
    known = set(AUTOMATIC) - given.keys()
    for one in [*_before_from(instructions), *(i for i in instructions if i.word == "FROM")]:
        if known & ({name for name, _ in declared(one)} if one.word == "ARG" else set()) or known & names(one.rest):
            return (), one
    stages = [(one, name, default) for one in instructions if one.word == "ARG" for name, default in declared(one)]
    bare = [name for _, name, default in stages if name in known and default is None]
    both = next((one for one, name, default in stages if name in bare and default is not None), None)
    return tuple(dict.fromkeys(bare)), both


def values(wanted: Iterable[str], *, target: str, build: str) -> dict[str, str]:
    """Values of automatic arguments, as BuildKit sets them. target, build: platforms, as `linux/arm/v7`."""
    known: dict[str, str] = {}
    for side, platform in (("TARGET", target), ("BUILD", build)):
        system, architecture, variant = [*platform.split("/"), "", ""][:3]
        variant = {"arm64": "", "arm": variant or "v7"}.get(architecture, variant)
        whole = "/".join(part for part in (system, architecture, variant) if part)
        known |= {
            f"{side}PLATFORM": whole,
            f"{side}OS": system,
            f"{side}ARCH": architecture,
            f"{side}VARIANT": variant,
        }
    return {name: known[name] for name in wanted}


def _before_from(found: Iterable[Instruction]) -> list[Instruction]:
    before = []
    for one in found:
        if one.word == "FROM":
            break
        before.append(one)
    return [one for one in before if one.word == "ARG"]
