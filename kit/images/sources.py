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
from kit.images import build, edits, engine, folder_tree, layer_tree, oci, packing, reference, registry, sqshfile, store
from kit.images.progress import Report
from kit.images.publish import Content
from kit.images.squash import Finished, Stream, Tree
from kit.spec.image import ImageConfig


@dataclass(frozen=True, kw_only=True)
class Source:
    """uri: what the lock calls the source."""

    uri: str
    content: Content


def ready(uri: str, work: Path, report: Report, *, platform: str = "") -> Source:
    """Fetch or open the source. work: a private folder for what has to be unpacked. platform: `linux/arm64`; empty: this machine's.

    UsageError for something that is not a source; ImageError and EngineError for one that cannot be fetched.
    """
    choice = oci.Choice(platform=platform)
    if uri.startswith("dockerd://"):
        return _from_engine(uri, choice)
    if uri.startswith("podman://"):
        return _from_podman(uri, work, report, choice)
    path, tag = _path_and_tag(uri)
    if path is not None:
        return _from_path(path, work, report, replace(choice, tag=tag))
    return _from_registry(reference.parse(uri), work, report, choice)


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
        name = reference.local(uri).rpartition("/")[2].partition(":")[0]
    else:
        name = reference.parse(uri).short
    return name.lower()


def _from_engine(uri: str, choice: oci.Choice) -> Source:
    name = reference.local(uri)
    client = engine.connect()
    image = client.inspect(name)
    if image is None:
        raise ImageError(f"{uri}: the engine holds no such image", hint="docker image ls")
    oci.must_fit(image.architecture, choice, uri)
    return Source(uri=uri, content=_engine_content(client, image, name))


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


def _from_podman(uri: str, work: Path, report: Report, choice: oci.Choice) -> Source:
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
    return Source(uri=uri, content=_oci_content(oci.read(archive, work, choice), name))


def _from_registry(wanted: reference.Reference, work: Path, report: Report, choice: oci.Choice) -> Source:
    if shell.which("skopeo"):
        resolved = registry.resolve_with_skopeo(wanted)
        report.stage(f"fetching {resolved.plain} with skopeo")
        image = registry.fetch_with_skopeo(resolved, work, choice)
        content = _oci_content(image, resolved.repository, resolved.digest)
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
    return Source(uri=wanted.enroot, content=replace(content, provenance=resolved.enroot))


def _from_path(path: Path, work: Path, report: Report, choice: oci.Choice) -> Source:
    uri = str(path.absolute()) + (f":{choice.tag}" if choice.tag else "")
    if path.is_dir():
        if (path / "oci-layout").is_file() or (path / "index.json").is_file() or (path / "manifest.json").is_file():
            return Source(uri=uri, content=_oci_content(oci.read(path, work, choice), path.name))
        return Source(uri=uri, content=_folder_content(path.absolute()))
    if not path.is_file():
        raise UsageError(f"{path}: no such file or folder", hint="or name an image: docker://REGISTRY#IMAGE:TAG")
    with path.open("rb") as stream:
        magic = stream.read(4)
    if magic == sqshfile.MAGIC:
        return Source(uri=uri, content=_sqsh_content(path))
    report.stage(f"reading {path.name}")
    plain = path
    if packing.kind(path):
        plain = work / "archive.tar"
        packing.unpack(path, plain)
    if _is_image_archive(plain, path):
        return Source(uri=uri, content=_oci_content(oci.read(plain, work, choice, name=str(path)), path.name))
    return Source(uri=uri, content=_tar_content(plain, path))


def _is_image_archive(plain: Path, path: Path) -> bool:
    """Whether a tar holds an image rather than a root filesystem; UsageError when it is no tar at all."""
    names: list[str] = []
    try:
        with tarfile.open(plain, mode="r:") as archive:
            names.extend(member.name.removeprefix("./") for member, _ in zip(archive, range(64), strict=False))
    except tarfile.TarError as error:
        if not names:  # one that is cut off later is said so by whoever reads all of it
            hint = "a .sqsh, an OCI layout or archive, a docker save, or a rootfs"
            raise UsageError(f"{path}: not an image: {error}", hint=hint) from None
    return any(
        name in {"oci-layout", "index.json", "manifest.json"}
        or name.startswith("blobs/sha")
        or name.endswith("/layer.tar")
        for name in names
    )


def _oci_content(image: oci.OciImage, name: str, digest: str = "") -> Content:
    @contextlib.contextmanager
    def opened() -> Iterator[Stream]:
        with layer_tree.merged(image.layers, image.names, whole=image.whole) as tree:
            yield Stream(members=tree.entries(), method="merging the layers, unpacking nothing", settle=tree.settled)

    return Content(
        ways=(opened,),
        size=sum(layer.stat().st_size for layer in image.layers),
        config=image.config,
        kind="import",
        reference=name,
        digest=digest or image.digest,
        keep_times=True,
    )


def _tar_content(plain: Path, path: Path) -> Content:
    digest = f"sha256:{store.digest_of(path)}"
    image = oci.OciImage(config=ImageConfig(), layers=(plain,), names=(path.name,), whole=True, digest=digest)
    return _oci_content(image, path.name)


def _folder_content(path: Path) -> Content:
    @contextlib.contextmanager
    def mounted() -> Iterator[Tree]:
        yield Tree(layers=(path,))

    @contextlib.contextmanager
    def walked() -> Iterator[Stream]:
        look = folder_tree.looker(path)
        yield Stream(
            members=folder_tree.entries(path),
            method="walking the folder",
            settle=lambda edit: edits.settled(edit, look),
        )

    # The digest of a folder needs all of it to be read: it is squashed each time, and the result compared.
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
