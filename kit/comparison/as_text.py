"""A comparison as lines of text, the most telling differences first. Equal parts are left out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from kit.comparison.compare import code_differs, reporter
from kit.schema.comparison import Comparison, FileDifference, MetricsDifference, ValueDifference

# Limits without --full: lines of one patch, files of one kind, packages of an image.
_PATCH_LINES, _FILES, _PACKAGES = 60, 20, 40


def lines(comparison: Comparison, *, full: bool) -> Iterator[str]:
    """The lines of text. full: without limits, such as on the lines of a patch."""
    for side, one in (("A", comparison.a), ("B", comparison.b)):
        code = "" if one.exit_code is None else f", exit code {one.exit_code}"
        yield f"{side}  {one.run}: {one.state}{code}: {one.why}"
    yield comparison.conclusion
    yield from _section("outcome", _facts(comparison.outcome))
    yield from _section("metrics", _metrics(comparison.metrics))
    yield from _section("keys", _keys(comparison))
    yield from _section("code", _code(comparison, full=full))
    yield from _section("image", _image(comparison, full=full))
    for name, differences in (
        ("kit", comparison.kit),
        ("cluster", comparison.cluster),
        ("nodes", comparison.nodes),
        ("environment", comparison.environment),
    ):
        yield from _section(name, _facts(differences))
    yield from _section("scripts", _files(comparison.scripts, full=full, patches=full))
    yield from _section("not known", comparison.unknown)


def _section(name: str, found: Iterable[str]) -> Iterator[str]:
    for place, line in enumerate(found):
        if place == 0:
            yield ""
            yield name
        yield f"  {line}"


def _facts(found: Iterable[ValueDifference]) -> Iterator[str]:
    for one in found:
        yield f"{one.name}: {_or_none(one.a)} -> {_or_none(one.b)}"


def _or_none(value: str | None) -> str:
    return "none" if value is None else value


def _metrics(metrics: MetricsDifference) -> Iterator[str]:
    for fork in metrics.parted:
        relative = f" ({fork.by / abs(fork.a):+.2g} of A)" if fork.a else ""
        yield (
            f"{fork.metric} diverges at step {fork.step}{reporter(fork)}: {fork.a:.9g} -> {fork.b:.9g}, by {fork.by:.3g}{relative};"
            f" {fork.equal_steps} reported steps before it are equal"
        )
        if fork.last_step != fork.step:
            yield f"{'':<{len(fork.metric)}} at step {fork.last_step}, the last of both: {fork.last_a:.9g} -> {fork.last_b:.9g}"
    if metrics.parted and metrics.equal:
        yield f"equal at every step of both: {', '.join(metrics.equal)}"
    for side, last in (("A", metrics.last_a), ("B", metrics.last_b)):
        if last is None:
            yield f"{side} reported none"
    for side, names in (("A", metrics.only_a), ("B", metrics.only_b)):
        if names:
            yield f"only {side} reported: {', '.join(names)}"
    for rate in metrics.speed:
        yield f"median {rate.name}: {rate.a} -> {rate.b}"


def _keys(made: Comparison) -> Iterator[str]:
    for one in made.keys:
        who = [f"A: {one.set_by_a or 'not recorded'}", f"B: {one.set_by_b or 'not recorded'}"]
        same = f"by {one.set_by_a}" if one.set_by_a and one.set_by_a == one.set_by_b else ", ".join(who)
        yield f"{one.key}: {_value(one.a)} -> {_value(one.b)}  ({same})"


def _value(value: object) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)


def _code(made: Comparison, *, full: bool) -> Iterator[str]:
    code = made.code
    if code_differs(code):
        if code.commit_a != code.commit_b:
            yield f"commit: {_or_none(code.commit_a)} -> {_or_none(code.commit_b)}"
        elif code.commit_a:
            yield f"commit: {code.commit_a} in both"
    yield from _files(code.files, full=full, patches=True)


def _files(found: Iterable[FileDifference], *, full: bool, patches: bool) -> Iterator[str]:
    every = [*found]
    for one in every if full else every[:_FILES]:
        text = one.patch.splitlines()
        count = [sum(line.startswith(sign) and line[:3] != sign * 3 for line in text) for sign in "+-"]
        said = ", ".join(filter(None, [one.note, f"+{count[0]} -{count[1]}" if text else ""]))
        yield f"{one.path}: {one.change}{f' ({said})' if said else ''}"
        if patches:
            kept = text if full else text[:_PATCH_LINES]
            yield from (f"  {line}" for line in kept)
            if len(kept) < len(text):
                yield f"  ... {len(text) - len(kept)} more lines: --full shows them"
    if not full and len(every) > _FILES:
        yield f"... {len(every) - _FILES} more files: --full shows them"


def _image(made: Comparison, *, full: bool) -> Iterator[str]:
    image = made.image
    if image.a == image.b:
        return
    yield f"{image.a} -> {image.b}"
    kept = image.packages if full else image.packages[:_PACKAGES]
    yield from kept
    if len(kept) < len(image.packages):
        yield f"... {len(image.packages) - len(kept)} more packages: --full shows them"
    yield from image.rest
