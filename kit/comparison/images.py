"""Compares two images by their records: package by package, then base, environment and tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kit.images.difference import lines
from kit.schema.comparison import ImageDifference
from kit.schema.image import ImageConfig, ImageLock, Packages


@dataclass(frozen=True, kw_only=True)
class ImageContent:
    """The content of an image. facts: base and tools, known only from a lock."""

    packages: Packages
    config: ImageConfig
    facts: Mapping[str, str] = field(default_factory=dict)


def of_lock(lock: ImageLock) -> ImageContent:
    """An image's content from its lock, without the engine's own id of the image: it differs in each build."""
    facts = {
        "base": f"{lock.base.reference}@{lock.base.digest}",
        "squash": f"{lock.squash.compressor} {lock.squash.block}",
        "mksquashfs": lock.tools.mksquashfs,
        "built by kit": lock.tools.kit,
        "engine": lock.tools.engine,
    }
    known = {name: value for name, value in facts.items() if value}
    return ImageContent(packages=lock.packages, config=lock.config, facts=known)


def between(a: str, b: str, held_a: ImageContent | None, held_b: ImageContent | None) -> ImageDifference:
    """The differences of two images.

    a, b: the names of the images; empty for a run without a container. held_a, held_b: their contents; None if unknown.
    """
    if a == b or held_a is None or held_b is None:
        return ImageDifference(a=a, b=b, packages=(), rest=())
    first, second = held_a.packages, held_b.packages
    kinds = (("apt", first.apt, second.apt), ("pip", first.pip, second.pip))
    facts = [held.facts if held_a.facts and held_b.facts else {} for held in (held_a, held_b)]
    workdirs = [{"workdir": held.config.workdir} for held in (held_a, held_b)]
    return ImageDifference(
        a=a,
        b=b,
        packages=tuple(line for kind, x, y in kinds for line in lines(x, y, prefix=f"{kind}:")),
        rest=(
            *lines(facts[0], facts[1]),
            *lines(workdirs[0], workdirs[1]),
            *lines(held_a.config.env, held_b.config.env, prefix="env:"),
        ),
    )
