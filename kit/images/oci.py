"""OCI layouts and archives, and the archives of `docker save`: configuration and layers, read without an engine."""

from __future__ import annotations

import gzip
import hashlib
import json
import platform
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from kit import shell
from kit.errors import ImageError
from kit.spec.image import ImageConfig

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_CHUNK = 1 << 20
# Go's names of architectures, which the specification uses.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64le", "riscv64": "riscv64"}


@dataclass(frozen=True, kw_only=True)
class OciImage:
    """layers: uncompressed tars, lowest first. digest: `sha256:…` of the manifest, or of the configuration for docker save."""

    config: ImageConfig
    layers: tuple[Path, ...]
    digest: str


def config(raw: dict[str, Any]) -> ImageConfig:
    """The `config` table of an image, which Docker and OCI spell the same way."""
    pairs = (entry.partition("=") for entry in raw.get("Env") or ())
    return ImageConfig(
        env={name: value for name, _, value in pairs},
        workdir=raw.get("WorkingDir") or "/",
        entrypoint=tuple(raw.get("Entrypoint") or ()),
        cmd=tuple(raw.get("Cmd") or ()),
        volumes=tuple(sorted(raw.get("Volumes") or ())),
        labels=dict(sorted((raw.get("Labels") or {}).items())),
    )


def read(source: Path, work: Path) -> OciImage:
    """The image in an OCI layout (folder) or an archive (tar); layers that are compressed are unpacked into `work`.

    ImageError when it is none, when it is damaged, and when it holds no image for this machine.
    """
    try:
        blobs: _Folder | _Archive = _Folder(source) if source.is_dir() else _Archive(source)
        with blobs:
            if blobs.has("index.json"):
                return _from_index(blobs, work)
            return _from_docker_save(blobs, work)
    except (KeyError, ValueError, TypeError, IndexError, tarfile.TarError, EOFError, OSError) as error:
        raise ImageError(f"{source}: not a readable image archive: {type(error).__name__}: {error}") from None


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
        return (self._root / name).open("rb")


class _Archive:
    """The same inside a tar, read in place."""

    def __init__(self, file: Path) -> None:
        self._tar = tarfile.open(file, mode="r:*")  # noqa: SIM115 - closed by __exit__
        self._members = {member.name.removeprefix("./"): member for member in self._tar.getmembers()}

    def __enter__(self) -> _Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._tar.close()

    def has(self, name: str) -> bool:
        return name in self._members

    def open(self, name: str) -> IO[bytes]:
        stream = self._tar.extractfile(self._members[name])
        if stream is None:
            raise ValueError(f"{name} is not a file")
        return stream


def _from_index(blobs: _Folder | _Archive, work: Path) -> OciImage:
    descriptor = _for_this_machine(_json(blobs, "index.json"))
    manifest = _json(blobs, _blob(descriptor["digest"]), descriptor["digest"])
    while "manifests" in manifest:
        descriptor = _for_this_machine(manifest)
        manifest = _json(blobs, _blob(descriptor["digest"]), descriptor["digest"])
    raw = _json(blobs, _blob(manifest["config"]["digest"]), manifest["config"]["digest"])
    layers = tuple(
        _layer(blobs, _blob(layer["digest"]), work / f"layer-{number}.tar", layer["digest"])
        for number, layer in enumerate(manifest["layers"])
    )
    return OciImage(config=config(raw.get("config") or {}), layers=layers, digest=descriptor["digest"])


def _from_docker_save(blobs: _Folder | _Archive, work: Path) -> OciImage:
    manifests = _json(blobs, "manifest.json")
    raw = _json(blobs, manifests[0]["Config"])
    layers = tuple(
        _layer(blobs, name, work / f"layer-{number}.tar", raw["rootfs"]["diff_ids"][number], of_tar=True)
        for number, name in enumerate(manifests[0]["Layers"])
    )
    with blobs.open(manifests[0]["Config"]) as stream:
        digest = hashlib.sha256(stream.read()).hexdigest()
    return OciImage(config=config(raw.get("config") or {}), layers=layers, digest=f"sha256:{digest}")


def _for_this_machine(index: dict[str, Any]) -> dict[str, Any]:
    """The descriptor of this machine's platform; the only one, when an index does not say."""
    manifests: list[dict[str, Any]] = index["manifests"]
    wanted = _ARCHITECTURES.get(platform.machine(), platform.machine())
    fitting = [m for m in manifests if (m.get("platform") or {}).get("architecture", wanted) == wanted]
    fitting = [m for m in fitting if (m.get("platform") or {}).get("os", "linux") == "linux"]
    if not fitting:
        raise ValueError(f"no image for linux/{wanted} among {len(manifests)}")
    return fitting[0]


def _blob(digest: str) -> str:
    algorithm, _, value = digest.partition(":")
    if algorithm != "sha256" or not all(c in "0123456789abcdef" for c in value) or len(value) != 64:
        raise ValueError(f"{digest!r} is not a sha256 digest")
    return f"blobs/sha256/{value}"


def _json(blobs: _Folder | _Archive, name: str, digest: str | None = None) -> Any:
    with blobs.open(name) as stream:
        content = stream.read()
    if digest is not None and f"sha256:{hashlib.sha256(content).hexdigest()}" != digest:
        raise ValueError(f"{name} does not have its digest: it is damaged")
    return json.loads(content)


def _layer(blobs: _Folder | _Archive, name: str, target: Path, digest: str, *, of_tar: bool = False) -> Path:
    """The layer as an uncompressed tar in `target`, checked against its digest (of_tar: the digest is of the result)."""
    packed = target.with_suffix(".blob")
    with blobs.open(name) as stream, packed.open("wb") as out:
        shutil.copyfileobj(stream, out, _CHUNK)
    if not of_tar:
        _check(packed, digest)
    unpack(packed, target)
    if of_tar:
        _check(target, digest)
    return target


def _check(file: Path, digest: str) -> None:
    with file.open("rb") as stream:
        found = f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"
    if found != digest:
        raise ValueError(f"a layer has the digest {found} instead of {digest}: it is cut off or damaged")


def unpack(packed: Path, target: Path) -> None:
    """Decompress gzip or zstd, by the content's own magic, into `target`; move it there when it is neither."""
    with packed.open("rb") as stream:
        magic = stream.read(4)
    if magic.startswith(_GZIP):
        with gzip.open(packed, "rb") as stream, target.open("wb") as out:
            shutil.copyfileobj(stream, out, _CHUNK)
    elif magic == _ZSTD:
        zstd = shell.require("zstd", hint="apt-get install zstd")
        shell.run([zstd, "--quiet", "--decompress", "-o", str(target), str(packed)])
    else:
        packed.rename(target)
        return
    packed.unlink()
