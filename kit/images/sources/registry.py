"""Images from a registry. A tag is resolved to a digest first. The kit asks the registry itself, else skopeo, else the engine.

All three use Docker's own credentials, which Docker's library and the tools find. The kit neither prints nor stores them.
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
from kit.images.sources import layer_cache, oci
from kit.images.sources.engine import Engine, EngineImage
from kit.images.sources.engine_hints import registry_hint
from kit.images.sources.image_reference import Reference
from kit.images.sources.layer_bytes import Blob
from kit.images.sources.registry_client import Client

# Of one image: an index has some twenty platforms, and a manifest some hundred layers.
_MOST_DESCRIPTIONS, _MOST_BYTES = 500, 128 << 20
_LARGEST_LAYER = 1 << 44  # bytes; registries take no more than a few terabytes


@dataclass(frozen=True, kw_only=True)
class Remote:
    """An image whose description was read from a registry. Its layers are still in the registry."""

    reference: Reference
    image: oci.OciImage

    def bring(self, advance: Callable[[int], None]) -> None:
        """Fetch the layers into the cache.

        advance is called with the number of new bytes. ImageError when a layer cannot be fetched.
        """
        client = Client(self.reference)
        try:
            sizes = {layer.digest: layer.size for layer in self.image.layers}
            layer_cache.fetch(client, sizes, advance, name=self.reference.plain)
        finally:
            client.close()


def describe(reference: Reference, choice: oci.Choice, *, say: Callable[[str], None] = lambda _: None) -> Remote:
    """The image by digest. CannotAskError if another tool may succeed; ImageError with a hint for all other errors."""
    client = Client(reference, say=say)
    try:
        resolved = replace(reference, digest=client.resolve())
        return Remote(reference=resolved, image=oci.read_blobs(_RemoteLayout(client, resolved), choice, resolved.plain))
    finally:
        client.close()


class _RemoteLayout:
    """A registry's repository as an OCI layout. It fetches descriptions when they are read, and never layers."""

    def __init__(self, client: Client, reference: Reference) -> None:
        self._client, self._name = client, reference.plain
        self._asked = self._came = 0
        self._index = json.dumps({"manifests": [{"digest": reference.digest}]}).encode()
        self._configs: set[str] = set()
        self._sizes: dict[str, object] = {}

    def open(self, name: str) -> IO[bytes]:
        """Fetch a description and return its content."""
        if name == "index.json":
            return io.BytesIO(self._index)
        digest = _digest(name)
        content = self._client.description(digest, manifest=digest not in self._configs)
        self._asked, self._came = self._asked + 1, self._came + len(content)
        if self._asked > _MOST_DESCRIPTIONS or self._came > _MOST_BYTES:
            raise ImageError(
                f"{self._name}: more descriptions than any image has: {self._asked}, of {self._came:,} bytes"
            )
        if digest not in self._configs:
            self._note_manifest(content)
        return io.BytesIO(content)

    def blob(self, name: str) -> Blob:
        """The file of a layer in the cache, where it will be after `bring`."""
        digest = _digest(name)
        return Blob(file=layer_cache.path(digest), size=self._size(digest), digest=digest)

    def _size(self, digest: str) -> int:
        """The layer's size, as the manifest has it: no more is fetched, so it must be a size."""
        size = self._sizes[digest]
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= _LARGEST_LAYER:
            raise ImageError(f"{self._name}: {str(size)[:40]!r} as the size of layer {digest} is not a number of bytes")
        return size

    def _note_manifest(self, content: bytes) -> None:
        """Note the configuration and the layer sizes in a manifest. Invalid content is ignored here; its reader reports it."""
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            manifest = json.loads(content)
            self._configs.add(manifest["config"]["digest"])
            self._sizes |= {layer["digest"]: layer["size"] for layer in manifest["layers"]}


def _digest(name: str) -> str:
    """`blobs/sha256/…` -> `sha256:…`."""
    return name.removeprefix("blobs/").replace("/", ":")


def resolve_with_skopeo(reference: Reference) -> Reference:
    """The same image by digest. ImageError gives the registry's message and a hint."""
    if reference.digest:
        return reference
    digest = _skopeo(["inspect", "--no-tags", "--format", "{{.Digest}}", f"docker://{reference.plain}"], reference)
    return replace(reference, digest=digest)


def fetch_with_skopeo(reference: Reference, work: Path, choice: oci.Choice) -> oci.OciImage:
    """Download the image into an OCI layout in `work` and read it."""
    layout = work / "layout"
    override = [f"--override-arch={choice.architecture}"]
    _skopeo([*override, "copy", "--quiet", f"docker://{reference.plain}", f"oci:{layout}:image"], reference)
    return oci.read_image(layout, work, choice, name=reference.plain)


def fetch_with_engine(
    engine: Engine, reference: Reference, *, platform: str | None, on_line: Callable[[str], None]
) -> tuple[Reference, EngineImage]:
    """Let the engine pull the image; return it with its digest."""
    engine.pull(reference.plain, platform=platform, on_line=on_line)
    image = engine.inspect(reference.plain)
    if image is None:
        raise ImageError(f"{reference.plain}: the engine pulled the image, but then did not find it")
    known = [name.rpartition("@")[2] for name in image.repo_digests]
    return replace(reference, digest=reference.digest or (known[0] if known else "")), image


def _skopeo(arguments: list[str], reference: Reference) -> str:
    skopeo = shell.require("skopeo", hint="apt-get install skopeo")
    try:
        return shell.run([skopeo, *arguments]).stdout
    except ToolError as error:
        said = _message(error.message)
        raise ImageError(f"{reference.plain}: {said}", hint=registry_hint(said)) from None


def _message(log: str) -> str:
    """The message of skopeo's log line `time=… level=fatal msg="…"`; the rest does not help the user."""
    for line in reversed(log.splitlines()):
        _, found, message = line.partition("msg=")
        if found:
            with contextlib.suppress(ValueError):
                return str(json.loads(message.strip()))
    return log
