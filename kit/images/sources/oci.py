"""OCI layouts and archives, and the archives of `docker save`: configuration and layers, read without an engine."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import platform
import posixpath
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Protocol

from kit.errors import ImageError, UsageError
from kit.files import untrusted_files
from kit.images.sources import compressed_tars
from kit.images.sources.layer_bytes import Blob
from kit.schema.image import ImageConfig

# Label that a kit's build puts on images in an engine. It is not part of the finished image.
MARK = "slurm-kit.build"
# The specification uses Go's names of architectures.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64le", "riscv64": "riscv64"}
_REF_NAME = "org.opencontainers.image.ref.name"
_LONGEST_JSON = 32 << 20
_MAX_LINKS = 8
_MOST_LAYERS = 4096  # engines stop at some hundred
# Errors when a file of a layout is missing, or is not a file that this user may read.
_INCOMPLETE_LAYOUT = {
    errno.ENOENT,
    errno.EACCES,
    errno.EPERM,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.ELOOP,
    errno.EINVAL,  # a FIFO or a device
    errno.ENAMETOOLONG,
}
_MAX_DEPTH = 8  # of nested indexes; the specification needs two


@dataclass(frozen=True, kw_only=True)
class OciImage:
    """An image whose layers are not read yet. layers: lowest first. digest: `sha256:…` of the manifest (configuration for docker
    save).

    whole: the layers must end as a tar does, since there is no digest to check them. architecture: Go's name; empty if the image
    names none.
    """

    config: ImageConfig
    layers: tuple[Blob, ...]
    digest: str
    whole: bool = False
    architecture: str = ""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The choice among several images: tag as in `PATH:TAG`, platform as in `linux/amd64`.

    An empty tag means the only image; an empty platform means this machine's.
    """

    tag: str = ""
    platform: str = ""

    @property
    def architecture(self) -> str:
        """Go's name of the architecture."""
        return self.platform.split("/")[1] if self.platform else here()


class _DamagedError(Exception):
    """The archive is not an image, or is incomplete."""


def here() -> str:
    """This machine's architecture, in the specification's words."""
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def is_image(folder: Path) -> bool:
    """Whether a folder is an OCI layout or an unpacked `docker save`, and not a root file system."""
    return any((folder / name).is_file() for name in ("oci-layout", "index.json", "manifest.json"))


def config(raw: dict[str, Any]) -> ImageConfig:
    """The `config` table of an image; Docker and OCI spell it the same way. ValueError if it is not a table."""
    pairs = (entry.partition("=") for entry in _words(raw.get("Env")))
    return ImageConfig(
        env={name: value for name, _, value in pairs},
        workdir=str(raw.get("WorkingDir") or "/"),
        entrypoint=tuple(_words(raw.get("Entrypoint"))),
        cmd=tuple(_words(raw.get("Cmd"))),
        volumes=tuple(sorted(_inside(volume) for volume in raw.get("Volumes") or ())),
        labels={str(name): str(value) for name, value in sorted((raw.get("Labels") or {}).items()) if name != MARK},
    )


def _inside(volume: str) -> str:
    """The volume's path without a `..` that leads above the root: /etc/fstab would bind a folder outside the unpacked image."""
    return posixpath.normpath(f"/{volume.lstrip('/')}") if ".." in volume.split("/") else volume


def _words(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]  # the shell form, which Docker before 1.10 wrote
    if not isinstance(value, list | None):
        raise ValueError(f"a list was expected, and it holds {type(value).__name__}")
    return [str(word) for word in value or ()]


def read_image(source: Path, work: Path, choice: Choice | None = None, *, name: str = "") -> OciImage:
    """The image in an OCI layout or an unpacked `docker save` (folder), or in an archive (tar). Its layers are not read yet.

    work: a folder for unpacking an archive that is compressed as a whole. name: of the source, for errors.

    ImageError when it is not an image, when its description is damaged, and when it holds no image for this machine; UsageError
    when it holds several and the choice does not select one.
    """
    choice, name = choice or Choice(), name or str(source)
    with _one_error(name), _Folder(source) if source.is_dir() else _Archive(source, work) as blobs:
        if blobs.has("index.json"):
            return _from_index(blobs, choice, name)
        return _from_docker_save(blobs, choice, name)


def read_blobs(blobs: Blobs, choice: Choice, name: str) -> OciImage:
    """The image of a layout that is not on this disk; see `read`."""
    with _one_error(name):
        return _from_index(blobs, choice, name)


@contextlib.contextmanager
def _one_error(name: str) -> Iterator[None]:
    """Turn every error that a wrong description causes into ImageError."""
    try:
        yield
    except RecursionError:
        raise ImageError(f"{name}: not a readable image archive: JSON that is nested too deep") from None
    except (
        _DamagedError,
        KeyError,
        ValueError,
        TypeError,
        AttributeError,
        IndexError,
        tarfile.TarError,
        EOFError,
    ) as error:
        raise ImageError(f"{name}: not a readable image archive: {_why(error)}") from None
    except OSError as error:
        if error.errno not in _INCOMPLETE_LAYOUT:
            raise
        raise ImageError(f"{name}: not a whole image: {error.filename}: {error.strerror}") from None


def _why(error: Exception) -> str:
    match error:
        case KeyError():
            return f"its description lacks {error}"
        case AttributeError() | TypeError() | IndexError():
            return "a part of its description is not of the kind that the OCI image specification says"
        case _:
            return str(error)


class Blobs(Protocol):
    """The files of a layout, by the names that the specification gives them."""

    def open(self, name: str) -> IO[bytes]:
        """The content of a file."""

    def blob(self, name: str) -> Blob:
        """The file, offset and size of a layer."""


class _Folder:
    """Blobs of a layout on the disk."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __enter__(self) -> _Folder:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def has(self, name: str) -> bool:
        return (self._root / name).is_file()

    def open(self, name: str) -> IO[bytes]:
        return untrusted_files.open_regular(self._place(name))

    def blob(self, name: str) -> Blob:
        place = self._place(name)
        with untrusted_files.open_regular(place):  # fail now if the file may not be read
            return Blob.whole(place)

    def _place(self, name: str) -> Path:
        # Until Python 3.13, Path.resolve raises RuntimeError for a link to itself.
        place = Path(os.path.realpath(self._root / name))
        if not place.is_relative_to(self._root.resolve()):
            raise _DamagedError(f"{name} points outside the archive")
        return place


class _Archive:
    """Blobs of a layout inside a tar, read in place. A compressed tar is unpacked into `work` first."""

    def __init__(self, file: Path, work: Path) -> None:
        if compressed_tars.kind(file):
            plain = work / "archive.tar"
            compressed_tars.unpack(Blob.whole(file), plain)
            file = plain
        self._file = file
        self._tar = tarfile.open(file, mode="r:")  # noqa: SIM115 - closed by __exit__
        self._members = {member.name.removeprefix("./"): member for member in self._tar.getmembers()}

    def __enter__(self) -> _Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._tar.close()

    def has(self, name: str) -> bool:
        return name in self._members

    def open(self, name: str) -> IO[bytes]:
        if name not in self._members:
            raise _DamagedError(f"{name} is missing: the archive is cut off")
        stream = self._tar.extractfile(self._members[name])
        if stream is None:
            raise _DamagedError(f"{name} is not a file")
        return stream

    def blob(self, name: str) -> Blob:
        self.open(name).close()
        member = self._members[name]
        for _ in range(_MAX_LINKS):  # docker save before version 25 writes a link for a layer that an image has twice
            if not (member.issym() or member.islnk()):
                break
            folder = posixpath.dirname(member.name) if member.issym() else ""
            member = self._members[posixpath.normpath(posixpath.join(folder, member.linkname))]
        return Blob(file=self._file, start=member.offset_data, size=member.size)


def _from_index(blobs: Blobs, choice: Choice, source: str) -> OciImage:
    descriptor, manifest = _chosen(blobs, _json(blobs, "index.json"), choice, source)
    for _ in range(_MAX_DEPTH):
        if "manifests" not in manifest:
            break
        descriptor, manifest = _chosen(blobs, manifest, replace(choice, tag=""), source)
    else:
        raise _DamagedError("an index that refers to itself")
    raw = _json(blobs, _blob_path(manifest["config"]["digest"]), manifest["config"]["digest"])
    _must_run_here(raw, choice, source)
    if len(manifest["layers"]) > _MOST_LAYERS:
        raise _DamagedError(f"{len(manifest['layers']):,} layers are more than any image has")
    layers = tuple(
        replace(
            blobs.blob(_blob_path(layer["digest"])), digest=layer["digest"], name=_layer_name(number, layer["digest"])
        )
        for number, layer in enumerate(manifest["layers"])
    )
    return _described(raw, layers, descriptor["digest"])


def _described(raw: dict[str, Any], layers: tuple[Blob, ...], digest: str) -> OciImage:
    architecture = str(raw.get("architecture", ""))
    return OciImage(config=config(raw.get("config") or {}), layers=layers, digest=digest, architecture=architecture)


def _layer_name(number: int, digest: str) -> str:
    return f"layer {number + 1} ({digest.partition(':')[2][:12]})"


def _from_docker_save(blobs: _Folder | _Archive, choice: Choice, source: str) -> OciImage:
    if not blobs.has("manifest.json"):
        raise _DamagedError("it has neither an index.json nor a manifest.json")
    manifests = [m for m in _json(blobs, "manifest.json") if m.get("Config")]
    tags = {tag.rpartition(":")[2] if ":" in tag else tag: m for m in manifests for tag in m.get("RepoTags") or ()}
    names = {tag: m for m in manifests for tag in m.get("RepoTags") or ()}
    if choice.tag:
        manifest = names.get(choice.tag) or tags.get(choice.tag)
        if manifest is None:
            raise _no_tag(source, choice.tag, list(names))
    elif len(manifests) > 1:
        raise _several(source, list(names))
    else:
        manifest = manifests[0]
    raw = _json(blobs, manifest["Config"])
    _must_run_here(raw, choice, source)
    digests = raw["rootfs"]["diff_ids"]
    for digest in digests:
        _blob_path(digest)
    layers = tuple(
        replace(blobs.blob(name), digest=digests[number], of_tar=True, name=_layer_name(number, digests[number]))
        for number, name in enumerate(manifest["Layers"])
    )
    with blobs.open(manifest["Config"]) as stream:
        digest = hashlib.sha256(stream.read()).hexdigest()
    return _described(raw, layers, f"sha256:{digest}")


def _chosen(blobs: Blobs, index: dict[str, Any], choice: Choice, source: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The descriptor of the chosen image, and its manifest or index. Entries that are not images (signatures) are skipped."""
    descriptors = [d for d in index["manifests"] if not d.get("artifactType") and _os(d) in ("linux", "")]
    if choice.tag:
        tagged = [d for d in descriptors if (d.get("annotations") or {}).get(_REF_NAME) == choice.tag]
        if not tagged:
            raise _no_tag(source, choice.tag, _tags(descriptors))
        descriptors = tagged
    fitting = [d for d in descriptors if _architecture(d) in (choice.architecture, "")]
    pairs = [(d, _json(blobs, _blob_path(d["digest"]), d["digest"])) for d in fitting]
    images = {d["digest"]: (d, manifest) for d, manifest in pairs if _is_image(manifest)}
    if not images:
        has = sorted({f"linux/{_architecture(d)}" for d in descriptors if _architecture(d)})
        raise _DamagedError(
            f"it holds no image for linux/{choice.architecture}" + (f"; it has {', '.join(has)}" if has else "")
        )
    if len(images) > 1:
        raise _several(source, _tags([d for d, _ in images.values()]))
    return next(iter(images.values()))


def _is_image(manifest: dict[str, Any]) -> bool:
    """Whether a manifest is an image's or an index. An artifact (OCI 1.1) has a configuration of another type."""
    if "manifests" in manifest:
        return True
    kind = (manifest.get("config") or {}).get("mediaType", "")
    return not manifest.get("artifactType") and (not kind or "image.config" in kind or "container.image" in kind)


def _os(descriptor: dict[str, Any]) -> str:
    return str((descriptor.get("platform") or {}).get("os", ""))


def _architecture(descriptor: dict[str, Any]) -> str:
    found = str((descriptor.get("platform") or {}).get("architecture", ""))
    return "" if found == "unknown" and not _os(descriptor) else found


def _tags(descriptors: list[dict[str, Any]]) -> list[str]:
    return [name for d in descriptors if (name := (d.get("annotations") or {}).get(_REF_NAME))]


def _several(source: str, tags: list[str]) -> UsageError:
    listed = "\n".join(f"  {tag}" for tag in tags) or "  (all without a tag)"
    return UsageError(f"{source}: it holds several images:\n{listed}", hint=f"{source}:TAG, or --platform")


def _no_tag(source: str, tag: str, tags: list[str]) -> UsageError:
    listed = "\n".join(f"  {known}" for known in tags) or "  (no tags)"
    return UsageError(f"{source}: no image has the tag {tag!r}; it has:\n{listed}", hint="copy one of these")


def _must_run_here(raw: dict[str, Any], choice: Choice, source: str) -> None:
    if raw.get("os", "linux") != "linux":
        raise ImageError(f"{source}: the image is for {raw['os']}, and the kit needs one for linux")
    must_fit(str(raw.get("architecture", "")), choice, source)


def must_fit(architecture: str, choice: Choice, source: str) -> None:
    """ImageError if the image's architecture is not the wanted one. An empty architecture always fits."""
    if architecture and architecture != choice.architecture:
        raise ImageError(
            f"{source}: the image is for linux/{architecture}, and linux/{choice.architecture} is needed",
            hint=f"--platform linux/{architecture} takes it anyway",
        )


def _blob_path(digest: str) -> str:
    algorithm, _, value = digest.partition(":")
    sizes = {"sha256": 64, "sha512": 128}
    if len(value) != sizes.get(algorithm) or not all(c in "0123456789abcdef" for c in value):
        raise _DamagedError(f"{digest!r} is neither a sha256 nor a sha512 digest")
    return f"blobs/{algorithm}/{value}"


def _json(blobs: Blobs, name: str, digest: str | None = None) -> Any:
    with blobs.open(name) as stream:
        content = stream.read(_LONGEST_JSON + 1)
    if len(content) > _LONGEST_JSON:
        raise _DamagedError(f"{name} is larger than any description of an image")
    if digest is not None and _digest_of(content, digest) != digest:
        raise _DamagedError(f"{name} does not have its digest: it is damaged")
    return json.loads(content)


def _digest_of(content: bytes, digest: str) -> str:
    algorithm = digest.partition(":")[0]
    return f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}"
