"""A build's stay in the engine: what it makes is marked, and what killed builds left in the engine is removed.

While a builder works it holds a container that is never started. Everybody who asks the engine sees from it who else builds, on
this machine or another, and removes a loose image only when nobody does: it may be the parent of somebody's next step.
"""

from __future__ import annotations

import contextlib
import io
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass

from kit.errors import EngineError, ImageError
from kit.images import oci
from kit.images.engine import Engine, OwnedContainer
from kit.spec.image import Build

# Repository of the tags that bases have while BuildKit builds on them; each tag is a builder's container.
_BASES = "kit-base/marked"
# Another builder's clean-up may take a marked base away just before it is held.
_TRIES = 3
# A holder on another host can only be judged by its age.
_FOREIGN_S = 24 * 3600.0


@dataclass(frozen=True, kw_only=True)
class Stay:
    """base: the image to build on, which has the kit's mark. container: what others see of this builder."""

    base: str
    container: str


@contextlib.contextmanager
def hold(engine: Engine, base: str, options: Build) -> Iterator[Stay]:
    """The base with the kit's mark, to build on, for the length of the block; afterwards the engine's leftovers are removed.

    base: an image that the engine holds. EngineError when the engine stops answering.
    """
    stay = _marked(engine, base, options)
    try:
        yield stay
    finally:
        with contextlib.suppress(EngineError, ImageError):  # a dead engine is named by whoever meets it first
            engine.remove_container(stay.container)
            tidy(engine)


def named(engine: Engine, stay: Stay) -> str:
    """A tag for the base: BuildKit looks for an id in a registry, and for a tag in the engine first. It ends with the stay."""
    reference = f"{_BASES}:{stay.container}"
    engine.tag(stay.base, reference)
    return reference


def tidy(engine: Engine) -> None:
    """Remove containers of processes that are gone, their tags and, when no other builder is at work, images that nothing needs."""
    # Before the containers: who made one of them in the meantime is seen by his container.
    loose, tags = engine.loose_images(), engine.tags(_BASES)
    left = remove_dead(engine)
    for tag in tags:
        if tag.rpartition(":")[2] not in {container.id for container in left}:
            engine.remove(tag)
    if not left:
        for image in loose:
            engine.remove_loose(image)


def remove_dead(engine: Engine) -> list[OwnedContainer]:
    """Remove the containers of processes that are gone; return those that are left."""
    left = []
    for container in engine.owned_containers():
        alive = container.owner.alive() if container.owner else None
        if alive is None:
            alive = time.time() - container.made < _FOREIGN_S
        if alive:
            left.append(container)
        else:
            engine.remove_container(container.id)
    return left


def _marked(engine: Engine, base: str, options: Build) -> Stay:
    for left in reversed(range(_TRIES)):
        marked = _mark(engine, base, options)
        try:
            return Stay(base=marked, container=engine.create(marked))
        except ImageError:
            if not left:
                raise
    raise AssertionError("the last try returns or raises")


def _mark(engine: Engine, base: str, options: Build) -> str:
    """An image that is the base but for its label, which all that is built on it inherits; the engine makes it once.

    One whose ONBUILD would be used up here is taken as it is.
    """
    image = engine.inspect(base)
    if image is None or image.triggers:
        return base
    text = f'ARG BASE\nFROM ${{BASE}}\nLABEL "{oci.MARK}"="1"\n'.encode()
    member = tarfile.TarInfo("Dockerfile")
    member.size = len(text)
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        archive.addfile(member, io.BytesIO(text))
    bare = Build(platform=options.platform)
    return engine.build(
        iter([context.getvalue()]), tag=None, base=base, options=bare, no_cache=False, on_line=lambda _: None
    )
