"""Sources of `kit import-image`: recognises the kind of source and prepares it for squashing."""

from __future__ import annotations

import contextlib
import os
import tarfile
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from kit import shell
from kit.errors import ImageError, ToolError, UsageError
from kit.images import image_lock, store
from kit.images.build import build
from kit.images.progress import ProgressReporter
from kit.images.sources import (
    compressed_tars,
    engine,
    engine_session,
    folder_tree,
    image_reference,
    layer_cache,
    layer_tree,
    oci,
    registry,
    registry_client,
    tree_edits,
    tree_stream,
)
from kit.images.sources.layer_bytes import Blob
from kit.images.squash import sqshfile
from kit.images.squash.squash import Finished, TarStream, Tree
from kit.images.squash_and_lock import Content
from kit.schema.image import ImageConfig

_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ImageSource:
    """A source that is ready to be squashed. uri: its name in the lock."""

    uri: str
    content: Content


def ready(uri: str, work: Path, report: ProgressReporter, *, platform: str = "") -> ImageSource:
    """Fetch or open the source. work: a private folder for unpacked data. platform: `linux/arm64`; empty: this machine's.

    UsageError for something that is not a source; ImageError and EngineError for a source that cannot be fetched.
    """
    choice = oci.Choice(platform=platform)
    if uri.startswith("dockerd://"):
        return _from_engine(uri, choice)
    if uri.startswith("podman://"):
        return _from_podman(uri, work, report, choice)
    path, tag = _path_and_tag(uri)
    if path is not None:
        return _from_path(path, work, report, replace(choice, tag=tag))
    return _from_registry(image_reference.parse(uri), work, report, choice)


def _path_and_tag(uri: str) -> tuple[Path | None, str]:
    """`PATH` or `PATH:TAG`; no path for the name of an image in a registry."""
    if not Path(uri).exists():
        for place in (number for number, sign in enumerate(uri) if sign == ":"):
            if Path(uri[:place]).exists():
                return Path(uri[:place]), uri[place + 1 :]
    return (Path(uri), "") if uri.startswith(("/", "./", "../")) or Path(uri).exists() else (None, "")


def default_name(uri: str) -> str:
    """A name for the image, from the last part of its source."""
    path, tag = _path_and_tag(uri)
    if path is not None:
        name = tag.rpartition("/")[2].partition(":")[0] if "/" in tag else path.name
        for suffix in (".gz", ".zst", ".xz", ".bz2", ".tar", ".sqsh"):
            name = name.removesuffix(suffix)
    elif uri.startswith(("dockerd://", "podman://")):
        name = image_reference.local(uri).rpartition("/")[2].partition(":")[0]
    else:
        name = image_reference.parse(uri).short
    return name.lower()


def _from_engine(uri: str, choice: oci.Choice) -> ImageSource:
    name = image_reference.local(uri)
    client = engine.connect()
    engine_session.remove_dead(client)
    image = client.inspect(name)
    if image is None:
        raise ImageError(f"{uri}: the engine holds no such image", hint="docker image ls")
    oci.must_fit(image.architecture, choice, uri)
    return ImageSource(uri=uri, content=_engine_content(client, image, name))


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
        platform=image_lock.platform_of(image.architecture),
    )


def _from_podman(uri: str, work: Path, report: ProgressReporter, choice: oci.Choice) -> ImageSource:
    podman = shell.require("podman", hint="apt-get install podman")
    name = image_reference.local(uri)
    archive = work / "podman.tar"
    report.stage(f"saving {name} from Podman")
    try:
        shell.run([podman, "save", "--quiet", "--format=oci-archive", f"--output={archive}", name])
    except ToolError as error:
        raise ImageError(
            f"{uri}: {error.message}", hint="'podman images' lists what it has, by its full names"
        ) from None
    return ImageSource(uri=uri, content=_oci_content(oci.read_image(archive, work, choice), name, work))


def _from_registry(
    wanted: image_reference.Reference, work: Path, report: ProgressReporter, choice: oci.Choice
) -> ImageSource:
    try:
        remote = registry.describe(wanted, choice, say=report.line)
    except registry_client.CannotAskError as error:
        report.line(f"{error.message}; asking in another way")
        return _by_another_tool(wanted, work, report, choice)
    resolved = remote.reference
    content = _remote_content(remote, work, report)
    return ImageSource(uri=wanted.enroot, content=replace(content, provenance=resolved.enroot))


def _remote_content(remote: registry.Remote, work: Path, report: ProgressReporter) -> Content:
    image, name = remote.image, remote.reference.plain

    @contextlib.contextmanager
    def opened() -> Iterator[TarStream]:
        total = sum(layer.size for layer in image.layers)
        with report.counting(f"fetching {name}", total) as advance:
            remote.bring(advance)
        try:
            with layer_tree.merged(image.layers, work) as tree:
                yield _merging(tree)
        except ImageError:
            layer_cache.drop_damaged(image.layers)  # remove damaged layers, so that the next import fetches them again
            raise

    found = _oci_content(image, remote.reference.repository, work, remote.reference.digest)
    return replace(found, ways=(opened,))


def _by_another_tool(
    wanted: image_reference.Reference, work: Path, report: ProgressReporter, choice: oci.Choice
) -> ImageSource:
    """Fetch with skopeo, which supports more registries and credentials, or else with the engine."""
    if shell.which("skopeo"):
        resolved = registry.resolve_with_skopeo(wanted)
        report.stage(f"fetching {resolved.plain} with skopeo")
        image = registry.fetch_with_skopeo(resolved, work, choice)
        content = _oci_content(image, resolved.repository, work, resolved.digest)
    else:
        client = engine.connect()
        report.stage(f"pulling {wanted.plain} with the engine")
        resolved, held = registry.fetch_with_engine(
            client, wanted, platform=choice.platform or None, on_line=report.line
        )
        oci.must_fit(held.architecture, choice, wanted.plain)
        content = replace(
            _engine_content(client, held, wanted.repository),
            kind="import",
            reference=wanted.repository,
            digest=resolved.digest or held.id,
        )
    return ImageSource(uri=wanted.enroot, content=replace(content, provenance=resolved.enroot))


def _from_path(path: Path, work: Path, report: ProgressReporter, choice: oci.Choice) -> ImageSource:
    uri = str(path.absolute()) + (f":{choice.tag}" if choice.tag else "")
    if path.is_dir():
        if oci.is_image(path):
            return ImageSource(uri=uri, content=_oci_content(oci.read_image(path, work, choice), path.name, work))
        return ImageSource(uri=uri, content=_folder_content(path.absolute()))
    if not path.is_file():
        raise UsageError(f"{path}: no such file or folder", hint="or name an image: docker://REGISTRY#IMAGE:TAG")
    with path.open("rb") as stream:
        magic = stream.read(4)
    if magic == sqshfile.MAGIC:
        return ImageSource(uri=uri, content=_sqsh_content(path))
    report.stage(f"reading {path.name}")
    if _is_image_archive(path, work):
        return ImageSource(uri=uri, content=_oci_content(oci.read_image(path, work, choice), path.name, work))
    return ImageSource(uri=uri, content=_tar_content(path, work))


def _is_image_archive(path: Path, work: Path) -> bool:
    """Whether a tar, compressed or not, holds an image rather than a root filesystem. UsageError when it is not a tar."""
    names: list[str] = []
    try:
        with (
            contextlib.closing(_tar_chunks(path, work)) as chunks,
            tarfile.open(fileobj=tree_stream.ChunkFile(chunks), mode="r|") as archive,
        ):
            names.extend(member.name.removeprefix("./") for member, _ in zip(archive, range(64), strict=False))
    except tarfile.TarError as error:
        if not names:  # a tar that is cut off later is reported when all of it is read
            hint = "a .sqsh, an OCI layout or archive, a docker save, or a rootfs"
            raise UsageError(f"{path}: not an image: {error}", hint=hint) from None
    return any(
        name in {"oci-layout", "index.json", "manifest.json"}
        or name.startswith("blobs/sha")
        or name.endswith("/layer.tar")
        for name in names
    )


def _tar_chunks(path: Path, work: Path) -> Generator[bytes]:
    """The chunks of a tar file, compressed or not."""
    if compressed_tars.kind(path):
        yield from compressed_tars.chunks(Blob.whole(path), work)
    else:
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                yield chunk


def _oci_content(image: oci.OciImage, name: str, work: Path, digest: str = "") -> Content:
    @contextlib.contextmanager
    def opened() -> Iterator[TarStream]:
        with layer_tree.merged(image.layers, work, whole=image.whole) as tree:
            yield _merging(tree)

    return Content(
        ways=(opened,),
        size=sum(compressed_tars.size(layer) for layer in image.layers),
        config=image.config,
        kind="import",
        reference=name,
        digest=digest or image.digest,
        keep_times=True,
        platform=image_lock.platform_of(image.architecture),
    )


def _merging(tree: layer_tree.LayerTree) -> TarStream:
    return TarStream(members=tree.entries(), method="merging the layers", settle=tree.settled)


def _tar_content(path: Path, work: Path) -> Content:
    image = oci.OciImage(
        config=ImageConfig(), layers=(Blob.whole(path),), whole=True, digest=f"sha256:{store.digest_of(path)}"
    )
    return _oci_content(image, path.name, work)


def _folder_content(path: Path) -> Content:
    @contextlib.contextmanager
    def mounted() -> Iterator[Tree]:
        yield Tree(layers=(path,))

    @contextlib.contextmanager
    def walked() -> Iterator[TarStream]:
        look = folder_tree.looker(path)
        yield TarStream(
            members=folder_tree.entries(path),
            method="walking the folder",
            settle=lambda edit: tree_edits.settled(edit, look),
        )

    # The digest of a folder requires reading all of it. So the folder is squashed each time, and the results are compared.
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
