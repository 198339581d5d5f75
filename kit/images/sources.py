"""What `kit import-image` takes, told apart and made ready to be squashed."""

from __future__ import annotations

import contextlib
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from kit import shell
from kit.errors import ImageError, ToolError, UsageError
from kit.images import build, engine, layer_tree, oci, reference, registry, sqshfile, store
from kit.images.progress import Report
from kit.images.publish import Content
from kit.images.squash import Finished, Stream, Tree
from kit.spec.image import ImageConfig


@dataclass(frozen=True, kw_only=True)
class Ready:
    """uri: what the lock calls the source."""

    uri: str
    content: Content


def ready(uri: str, work: Path, report: Report) -> Ready:
    """Fetch or open the source. work: a private folder for what has to be unpacked.

    UsageError for something that is no source; ImageError and EngineError for one that cannot be had.
    """
    if uri.startswith("dockerd://"):
        return _from_engine(uri)
    if uri.startswith("podman://"):
        return _from_podman(uri, work, report)
    if uri.startswith(("/", "./", "../")) or Path(uri).exists():
        return _from_path(Path(uri), work, report)
    return _from_registry(reference.parse(uri), work, report)


def default_name(uri: str) -> str:
    """A name for the image, from the last part of its source."""
    if uri.startswith(("/", "./", "../")) or Path(uri).exists():
        name = Path(uri).name.removesuffix(".gz").removesuffix(".tar").removesuffix(".sqsh")
    elif uri.startswith(("dockerd://", "podman://")):
        name = reference.local(uri).rpartition("/")[2].partition(":")[0]
    else:
        name = reference.parse(uri).short
    return name.lower()


def _from_engine(uri: str) -> Ready:
    name = reference.local(uri)
    client = engine.connect()
    image = client.inspect(name)
    if image is None:
        raise ImageError(f"{uri}: the engine holds no such image", hint="docker image ls")
    return Ready(uri=uri, content=_engine_content(client, image, name))


def _engine_content(client: engine.Engine, image: engine.EngineImage, name: str) -> Content:
    digest = image.repo_digests[0].rpartition("@")[2] if image.repo_digests else image.id
    return Content(
        ways=build.ways(client, image),
        size=image.size,
        config=image.config,
        kind="import",
        reference=name,
        digest=digest,
        keep_times=True,
        engine=client.version,
        image_id=image.id,
    )


def _from_podman(uri: str, work: Path, report: Report) -> Ready:
    podman = shell.require("podman", hint="apt-get install podman")
    name = reference.local(uri)
    archive = work / "podman.tar"
    report.stage(f"saving {name} from Podman")
    try:
        shell.run([podman, "save", "--quiet", "--format=oci-archive", f"--output={archive}", name])
    except ToolError as error:
        raise ImageError(
            f"{uri}: {error.message}", hint="'podman images' lists what it has, by its full names"
        ) from None
    return Ready(uri=uri, content=_oci_content(oci.read(archive, work), name))


def _from_registry(wanted: reference.Reference, work: Path, report: Report) -> Ready:
    if shell.which("skopeo"):
        resolved = registry.resolve_with_skopeo(wanted)
        report.stage(f"fetching {resolved.plain} with skopeo")
        content = _oci_content(registry.fetch_with_skopeo(resolved, work), resolved.repository, resolved.digest)
    else:
        client = engine.connect()
        report.stage(f"pulling {wanted.plain} with the engine")
        resolved, image = registry.fetch_with_engine(client, wanted, platform=None, on_line=report.line)
        content = replace(
            _engine_content(client, image, wanted.repository),
            kind="import",
            reference=wanted.repository,
            digest=resolved.digest or image.id,
        )
    return Ready(uri=wanted.enroot, content=replace(content, provenance=resolved.enroot))


def _from_path(path: Path, work: Path, report: Report) -> Ready:
    uri = str(path.absolute())
    if path.is_dir():
        if (path / "oci-layout").is_file():
            return Ready(uri=uri, content=_oci_content(oci.read(path, work), path.name))
        return Ready(uri=uri, content=_folder_content(path.absolute()))
    if not path.is_file():
        raise UsageError(f"{path}: no such file or folder", hint="or name an image: docker://REGISTRY#IMAGE:TAG")
    with path.open("rb") as stream:
        magic = stream.read(4)
    if magic == sqshfile.MAGIC:
        return Ready(uri=uri, content=_sqsh_content(path))
    report.stage(f"reading {path.name}")
    if _is_image_archive(path):
        return Ready(uri=uri, content=_oci_content(oci.read(path, work), path.name))
    return Ready(uri=uri, content=_tar_content(path, work))


def _is_image_archive(path: Path) -> bool:
    """Whether a tar holds an image rather than a root filesystem; UsageError when it is no tar at all."""
    try:
        with tarfile.open(path, mode="r:*") as archive:
            for member, _ in zip(archive, range(64), strict=False):
                if member.name.removeprefix("./") in {"oci-layout", "index.json", "manifest.json"}:
                    return True
                if member.name.removeprefix("./").startswith("blobs/sha256"):
                    return True
                if member.name.endswith("/layer.tar"):
                    return True
    except tarfile.TarError as error:
        raise UsageError(
            f"{path}: not an image: {error}", hint="a .sqsh, an OCI layout or archive, a docker save, or a rootfs"
        ) from None
    return False


def _oci_content(image: oci.OciImage, name: str, digest: str = "") -> Content:
    @contextlib.contextmanager
    def opened() -> Iterator[Stream]:
        yield Stream(members=layer_tree.merged(image.layers), method="merging the layers, unpacking nothing")

    return Content(
        ways=(opened,),
        size=sum(layer.stat().st_size for layer in image.layers),
        config=image.config,
        kind="import",
        reference=name,
        digest=digest or image.digest,
        keep_times=True,
    )


def _tar_content(path: Path, work: Path) -> Content:
    digest = store.digest_of(path)
    tar = work / "rootfs.tar"
    packed = work / "rootfs.packed"
    packed.symlink_to(path.absolute())
    oci.unpack(packed, tar)
    image = oci.OciImage(config=ImageConfig(), layers=(tar,), digest=f"sha256:{digest}")
    return _oci_content(image, path.name)


def _folder_content(path: Path) -> Content:
    @contextlib.contextmanager
    def mounted() -> Iterator[Tree]:
        yield Tree(layers=(path,))

    @contextlib.contextmanager
    def walked() -> Iterator[Stream]:
        yield Stream(members=layer_tree.walked(path), method="walking the folder")

    # A folder has no digest that could be had without reading all of it: it is squashed each time, and the result compared.
    return Content(
        ways=(mounted, walked) if os.geteuid() == 0 else (walked,),
        size=0,
        config=ImageConfig(),
        kind="import",
        reference=path.name,
        keep_times=True,
    )


def _sqsh_content(path: Path) -> Content:
    @contextlib.contextmanager
    def opened() -> Iterator[Finished]:
        yield Finished(path=path)

    sqshfile.check(path, hint="copy it again from where it came")
    return Content(
        ways=(opened,),
        size=path.stat().st_size,
        config=sqshfile.config(path),
        kind="import",
        reference=path.name,
        digest=f"sha256:{store.digest_of(path)}",
        keep_times=True,
    )
