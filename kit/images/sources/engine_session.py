"""Marks what a build creates in the engine, and removes what killed builds left there.

While a builder works it holds a container that is never started. The containers show every kit which builders use the engine, from
this machine or another. A kit removes an untagged image only when no other builder is at work, since a builder may need it as the
parent of its next step.
"""

from __future__ import annotations

import contextlib
import io
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass

from kit.errors import EngineError, ImageError
from kit.images.sources import oci
from kit.images.sources.engine import Engine, OwnedContainer
from kit.schema.image import Build

# Repository for the tags of bases while BuildKit builds on them. Each tag is the id of a builder's container.
_BASES = "kit-base/marked"
# Another builder's clean-up may remove a marked base just before this builder holds it.
_TRIES = 3
# A holder on another host can only be judged by its age.
_FOREIGN_S = 24 * 3600.0


@dataclass(frozen=True, kw_only=True)
class Stay:
    """A builder at work. base: the image to build on, with the kit's mark. container: shows other kits that this builder is at
    work."""

    base: str
    container: str


@contextlib.contextmanager
def hold(engine: Engine, base: str, options: Build, *, mark: bool = True) -> Iterator[Stay]:
    """The base with the kit's mark, to build on, for the length of the block. Afterwards the engine's leftovers are removed.

    base: an image that the engine holds. mark: False for a Dockerfile that names its base itself: the build marks its result.
    EngineError when the engine stops answering.
    """
    stay = _marked(engine, base, options) if mark else Stay(base=base, container=engine.create(base))
    try:
        yield stay
    finally:
        with contextlib.suppress(EngineError, ImageError):  # the main work reports a dead engine
            engine.remove_container(stay.container)
            tidy(engine)


def named(engine: Engine, stay: Stay) -> str:
    """Tag the base until the stay ends. BuildKit looks up an id in a registry, but a tag first in the engine."""
    reference = f"{_BASES}:{stay.container}"
    engine.tag(stay.base, reference)
    return reference


def tidy(engine: Engine) -> None:
    """Remove containers of dead processes and their tags. If no other builder is at work, also remove images that nothing needs."""
    # List the images first: a builder that creates an image after this has its container by the time containers are listed.
    loose, tags = engine.loose_images(), engine.tags(_BASES)
    left = remove_dead(engine)
    for tag in tags:
        if tag.rpartition(":")[2] not in {container.id for container in left}:
            engine.remove(tag)
    if not left:
        for image in loose:
            engine.remove_loose(image)


def remove_dead(engine: Engine) -> list[OwnedContainer]:
    """Remove the containers of dead processes; return the remaining ones."""
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
    """An image that differs from the base only by the kit's label, which every image built on it inherits. Made once per engine.

    A base with ONBUILD instructions is used as it is, because this build would consume them.
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
