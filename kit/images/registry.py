"""Images from a registry, by the best-kept tool that is here: skopeo, else the engine. A tag becomes a digest first.

Credentials are the tools' own: Docker's config.json for both. The kit neither reads nor prints nor stores them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kit import shell
from kit.errors import ImageError, ToolError
from kit.images import oci
from kit.images.engine import Engine, EngineImage, registry_hint
from kit.images.reference import Reference


def resolve_with_skopeo(reference: Reference) -> Reference:
    """The same image by digest. ImageError says what the registry said, and what to do."""
    if reference.digest:
        return reference
    digest = _skopeo(["inspect", "--no-tags", "--format", "{{.Digest}}", f"docker://{reference.plain}"], reference)
    return replace(reference, digest=digest)


def fetch_with_skopeo(reference: Reference, work: Path, choice: oci.Choice) -> oci.OciImage:
    """Download the image into an OCI layout in `work` and read it."""
    layout = work / "layout"
    override = [f"--override-arch={choice.architecture}"]
    _skopeo([*override, "copy", "--quiet", f"docker://{reference.plain}", f"oci:{layout}:image"], reference)
    return oci.read(layout, work, choice, name=reference.plain)


def fetch_with_engine(
    engine: Engine, reference: Reference, *, platform: str | None, on_line: Callable[[str], None]
) -> tuple[Reference, EngineImage]:
    """Let the engine pull the image; return it with its digest."""
    engine.pull(reference.plain, platform=platform, on_line=on_line)
    image = engine.inspect(reference.plain)
    if image is None:
        raise ImageError(f"{reference.plain}: the engine pulled it and does not hold it")
    known = [name.rpartition("@")[2] for name in image.repo_digests]
    return replace(reference, digest=reference.digest or (known[0] if known else "")), image


def _skopeo(arguments: list[str], reference: Reference) -> str:
    skopeo = shell.require("skopeo", hint="apt-get install skopeo")
    try:
        return shell.run([skopeo, *arguments]).stdout
    except ToolError as error:
        said = _message(error.message)
        raise ImageError(f"{reference.plain}: {said}", hint=registry_hint(said)) from None


def _message(said: str) -> str:
    """skopeo logs `time=… level=fatal msg="…"`; the message alone is what helps."""
    for line in reversed(said.splitlines()):
        _, found, message = line.partition("msg=")
        if found:
            with contextlib.suppress(ValueError):
                return str(json.loads(message.strip()))
    return said
