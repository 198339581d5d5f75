"""Images from a registry. A tag becomes a digest first. The kit asks itself; where it cannot, skopeo, else the engine.

Credentials are Docker's own for all of them, found by Docker's library and by the tools. The kit neither prints nor stores them.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from kit import shell
from kit.errors import ImageError, ToolError
from kit.images import layer_cache, oci
from kit.images.engine import Engine, EngineImage, registry_hint
from kit.images.image_reference import Reference
from kit.images.layer_bytes import Blob
from kit.images.registry_client import Client


@dataclass(frozen=True, kw_only=True)
class Remote:
    """An image of a registry whose description is known; its layers are still there."""

    reference: Reference
    image: oci.OciImage

    def bring(self, advance: Callable[[int], None]) -> None:
        """Bring the layers into the cache; advance hears how many bytes more there are. ImageError when they cannot be."""
        client = Client(self.reference)
        try:
            digests = [layer.digest for layer in self.image.layers]
            layer_cache.fetch(client, digests, advance, name=self.reference.plain)
        finally:
            client.close()


def describe(reference: Reference, choice: oci.Choice) -> Remote:
    """The image by digest. CannotAskError where another tool may do better, ImageError with what to do for all else."""
    client = Client(reference)
    try:
        resolved = replace(reference, digest=client.resolve())
        return Remote(reference=resolved, image=oci.read_blobs(_Described(client, resolved), choice, resolved.plain))
    finally:
        client.close()


class _Described:
    """A registry's repository as a layout: descriptions are fetched when they are asked for, layers are not."""

    def __init__(self, client: Client, reference: Reference) -> None:
        self._client = client
        self._index = json.dumps({"manifests": [{"digest": reference.digest}]}).encode()
        self._configs: set[str] = set()
        self._sizes: dict[str, int] = {}

    def open(self, name: str) -> IO[bytes]:
        """See oci.Blobs."""
        if name == "index.json":
            return io.BytesIO(self._index)
        digest = _digest(name)
        content = self._client.description(digest, manifest=digest not in self._configs)
        if digest not in self._configs:
            self._note(content)
        return io.BytesIO(content)

    def blob(self, name: str) -> Blob:
        """See oci.Blobs."""
        digest = _digest(name)
        return Blob(file=layer_cache.path(digest), size=self._sizes[digest], digest=digest)

    def _note(self, content: bytes) -> None:
        """What a manifest says of the blobs that it names; one that is none is found out by its reader."""
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            manifest = json.loads(content)
            self._configs.add(manifest["config"]["digest"])
            self._sizes |= {layer["digest"]: int(layer["size"]) for layer in manifest["layers"]}


def _digest(name: str) -> str:
    """`blobs/sha256/…` -> `sha256:…`."""
    return name.removeprefix("blobs/").replace("/", ":")


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
