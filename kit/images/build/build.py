"""`kit build-image`: turns an image's folder into one .sqsh in the store, and writes the lock that names it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from kit import data_folders
from kit.config import load_model
from kit.errors import EngineError, ImageError, LockError
from kit.files import cross_host_lock, temporary_names
from kit.images import check_against_lock, image_lock, squash_and_lock, store
from kit.images.build import (
    base_image,
    build_context,
    build_without_engine,
    buildkit,
    dockerfile_arguments,
    dockerfile_lines,
    dockerfile_needs,
    foreign_platform,
    repository_context,
    requirements_lock,
    wheels,
)
from kit.images.progress import ProgressReporter
from kit.images.sources import engine_session, oci, tree_edits, tree_stream
from kit.images.sources.engine import Engine, EngineImage, connect
from kit.images.squash import squash
from kit.schema.image import Build, ImageLock, ImageSpec

_PROVENANCE = "kit build-image"
# Podman's own label contains its version. With this label, another engine could not give the same bytes.
_PODMAN = "io.buildah.version"


@dataclass(frozen=True, kw_only=True)
class BuildOrder:
    """The image to build, and the store for it.

    locked, relock: see squash_and_lock.Target. fresh: build from nothing; do not use the engine's cache or an earlier base or
    download.
    """

    name: str
    project: Path
    store: Path
    locked: bool = False
    fresh: bool = False
    relock: bool = False


@dataclass(frozen=True, kw_only=True)
class _BuildFolder:
    """The image's folder as it is now. dockerfile: in the image's folder, or in the context that image.toml names."""

    path: Path
    context: Path
    dockerfile: Path
    spec: ImageSpec
    files: tuple[build_context.ContextFile, ...]
    other: tuple[ImageLock, Path] | None  # lock and .sqsh of the image that this one builds on
    pinned: base_image.Pinned | None
    needs: dockerfile_needs.Dockerfile

    @property
    def base_moves(self) -> bool:
        """Whether the name of its base can mean other bytes tomorrow: a distribution's packages, or an image without a digest."""
        base = self.spec.base
        if base is not None and base.bootstrap is not None:
            return True
        reference = base.reference or "" if base else self.needs.base
        return bool(reference) and "@" not in reference


def build(order: BuildOrder, report: ProgressReporter) -> squash_and_lock.Outcome:
    """Build the image unless the store already has it, and before it each base that is not there; see BuildOrder and Outcome.

    ConfigError for a wrong image.toml, EngineError without an engine, LockError with `locked`, ImageError for everything else.
    """
    return _build(order, report, ())


def _build(order: BuildOrder, report: ProgressReporter, above: tuple[str, ...]) -> squash_and_lock.Outcome:
    """above: the images that are built on this one."""
    start = time.monotonic()
    folder, target = _read(order, report, above)
    # The base of today may differ from that of the lock, although no input has changed.
    again = order.fresh or (order.relock and folder.base_moves)
    done = None if again else squash_and_lock.unchanged(target)
    if done is None:
        store.prepare_store(order.store)
        with cross_host_lock.hold(store.lock_file(order.store, order.name), on_wait=lambda who: _waiting(report, who)):
            done = None if again else squash_and_lock.unchanged(target)
            if done is None:
                squash.mksquashfs()  # find out that mksquashfs is missing before the long build, not after it
                engine = _engine(folder, report)
                with store.workspace(order.store) as work, _content(order, folder, engine, work, report) as content:
                    done = squash_and_lock.make(target, content, work, report)
    if not done.built:
        store.clean(order.store)
    return replace(done, seconds=time.monotonic() - start)


def _waiting(report: ProgressReporter, who: str) -> None:
    report.stage(f"{who} is making this image; waiting, then using it")


def _read(
    order: BuildOrder, report: ProgressReporter, above: tuple[str, ...]
) -> tuple[_BuildFolder, squash_and_lock.Target]:
    entry = data_folders.find("containers", order.name, project_dir=order.project)
    spec = load_model(entry.path, ImageSpec)
    other = _other(order, spec, report, above)
    if spec.python is not None:
        held = other[0].packages.pip if other else {}
        requirements_lock.refresh(spec.python, entry.folder, held, locked=order.locked, on_line=report.stage)
    temporary_names.sweep(entry.folder)
    context = (entry.folder / spec.build.context).resolve() if spec.build.context else entry.folder
    file = Path(os.path.normpath(context / spec.build.dockerfile))
    notes = ["the build had a network: another build may give other bytes"] if spec.build.network != "none" else []
    needs = dockerfile_needs.read_dockerfile(
        file, target=spec.build.target, args=spec.build.args, own_base=spec.base is None
    )
    buildkit.agree(entry.path, file, needs, spec.build)
    if spec.build.context:
        files = repository_context.scan(context, file, needs.steps, without=entry.folder)
    else:
        files = build_context.scan(entry.folder)
    notes += [
        f"the Dockerfile takes {image} without a digest: another build may take another image"
        for image in needs.unpinned
    ]
    notes += [
        f"the Dockerfile adds {address} without a checksum: another build may get another file"
        for address in needs.downloads
    ]
    target = squash_and_lock.Target(
        name=order.name,
        store=order.store,
        lock_file=image_lock.place(entry, project=order.project),
        shipped=image_lock.find(order.name, project=order.project),
        source="build",
        inputs=build_context.digest(spec, files, base=other[0].sha256 if other else "", automatic=needs.automatic),
        squash=spec.squash,
        locked=order.locked,
        relock=order.relock,
        notes=tuple(notes),
        context=build_context.files_digest(files) if spec.build.context else None,
    )
    folder = _BuildFolder(
        path=entry.folder,
        context=context,
        dockerfile=file,
        spec=spec,
        files=files,
        other=other,
        pinned=_pinned(spec, needs.base, target),
        needs=needs,
    )
    return folder, target


def _pinned(spec: ImageSpec, base: str, target: squash_and_lock.Target) -> base_image.Pinned | None:
    """The lock whose base the build keeps. None with `relock`, and for a lock of another base."""
    locked = None if target.relock else target.current
    if spec.base and spec.base.bootstrap:
        named = ("bootstrap", spec.base.bootstrap.suite)
    else:
        named = ("reference", spec.base.reference or "" if spec.base else base)
    if locked is None or (locked.base.kind, locked.base.reference) != named:
        return None
    return base_image.Pinned(lock=locked, required=target.locked or locked.inputs == target.inputs)


def _other(
    order: BuildOrder, spec: ImageSpec, report: ProgressReporter, above: tuple[str, ...]
) -> tuple[ImageLock, Path] | None:
    """Lock and .sqsh of the image that this one builds on. The .sqsh must match its lock. A base that is missing is built."""
    name = spec.base.image if spec.base else None
    if name is None:
        return None
    if name in (order.name, *above):
        problem = "its base is the image itself" if name == order.name else f"its base {name} is built on it"
        raise ImageError(f"image {order.name}: {problem}", hint="name another image in [base] image")
    if lacking := _lacking(order, name):
        report.stage(f"image {name}, on which {order.name} builds, comes first: {lacking}")
        # Build a missing base again only to the bytes of its lock. Any other base would silently change the image.
        pinned = image_lock.find(name, project=order.project) is not None
        base = replace(order, name=name, locked=pinned, fresh=False, relock=False)
        _build(base, report, (order.name, *above))
    place = image_lock.find(name, project=order.project)
    assert place is not None, name
    locked = image_lock.read_lock(place)
    return locked, check_against_lock.check(locked, order.store, full=False)


def _lacking(order: BuildOrder, base: str) -> str:
    """What is missing of the base, if a build makes it; else empty. LockError for a build that may write no lock."""
    lock_file = image_lock.find(base, project=order.project)
    if lock_file is None:
        data_folders.find("containers", base, project_dir=order.project, key="base.image")
        if order.locked:
            raise LockError(
                f"image {order.name}: its base, image {base}, has no lock", hint=f"run 'kit build-image {base}' first"
            )
        return "it was not built yet"
    return "its file is not in the store" if store.lacks_built(order.store, image_lock.read_lock(lock_file)) else ""


def _engine(folder: _BuildFolder, report: ProgressReporter) -> Engine | None:
    """Return the engine; None if no engine answers and the image can be built without one."""
    try:
        return connect()
    except EngineError as error:
        why = build_without_engine.why_not(folder.spec, folder.needs.steps)
        if why:
            raise EngineError(error.message, hint=f"{error.hint}; {why}") from None
        report.warn(f"{error.message}: building without one, by bubblewrap")
        return None


@contextlib.contextmanager
def _content(
    order: BuildOrder, folder: _BuildFolder, engine: Engine | None, work: Path, report: ProgressReporter
) -> Iterator[squash_and_lock.Content]:
    """Build the image: prepare the base, fetch the packages, then run the Dockerfile."""
    machine = engine.platform if engine else f"linux/{oci.here()}"
    foreign_platform.require(folder.spec, folder.needs, folder.other[0] if folder.other else None, engine=machine)
    if engine is not None:
        yield _by_engine(order, folder, engine, work, report)
        return
    assert folder.other is not None
    locked, sqsh = folder.other
    files = build_context.with_wheels(folder.files, _packages(order, folder, report))
    report.stage("unpacking the base and running the Dockerfile's steps in it, network: none")
    with build_without_engine.built(sqsh, locked.config, folder.needs.steps, files, work, on_line=report.line) as (
        root,
        config,
    ):
        yield squash_and_lock.Content(
            ways=build_without_engine.ways(root),
            size=0,
            config=config,
            kind="image",
            reference=locked.name,
            digest=locked.digest,
            provenance=_PROVENANCE,
            noise=tree_edits.BUILD_NOISE,
            platform=image_lock.platform_of(oci.here()),
        )


def _packages(order: BuildOrder, folder: _BuildFolder, report: ProgressReporter) -> tuple[Path, ...]:
    python = folder.spec.python
    if python is None:
        return ()
    report.stage("fetching Python packages against the hash lock")
    return wheels.fetch(python, folder.path, fresh=order.fresh, on_line=report.line)


def _by_engine(
    order: BuildOrder, folder: _BuildFolder, engine: Engine, work: Path, report: ProgressReporter
) -> squash_and_lock.Content:
    spec, toml = folder.spec, folder.path / "image.toml"
    for sentence in buildkit.missing(toml, folder.dockerfile, folder.needs, spec.build):
        report.warn(sentence)
    held = None
    if folder.needs.buildkit is not None:
        version = "Podman" if engine.podman else engine.version
        held = buildkit.session(toml, folder.dockerfile, folder.needs, spec.build, version)
    report.stage("making the base ready")
    ready = _base(order, folder, engine, work, report)
    packages = _packages(order, folder, report)
    how = f"{'BuildKit of ' if held else ''}the engine (Docker {engine.version})"
    report.stage(f"building with {how}, network: {spec.build.network}")
    tag = f"kit-image/{order.name}:latest"
    sent = build_context.stream(_sent(folder, held, ready, work), packages)
    file = folder.dockerfile.relative_to(folder.context).as_posix()
    with engine_session.hold(engine, ready.reference, spec.build, mark=spec.base is not None) as stay:
        if held is None:
            image_id = engine.build(
                sent,
                tag=tag,
                base=stay.base if spec.base else None,
                options=_with_automatic(spec.build, folder.needs, engine),
                no_cache=order.fresh,
                on_line=report.line,
                dockerfile=file,
            )
        else:
            image_id = buildkit.build(
                held,
                sent,
                tag=tag,
                base=engine_session.named(engine, stay) if spec.base else None,
                options=spec.build,
                no_cache=order.fresh,
                work=work,
                on_line=report.line,
                dockerfile=file,
            )
    image = engine.inspect(image_id or tag)
    assert image is not None, "an image that was just built"
    foreign_platform.require_result(spec.build, image.architecture)
    labels = {name: value for name, value in image.config.labels.items() if name != _PODMAN}
    return squash_and_lock.Content(
        ways=ways(engine, image),
        size=image.size,
        config=image.config.model_copy(update={"labels": labels}),
        kind=ready.kind,
        reference=ready.name,
        digest=ready.digest,
        provenance=_PROVENANCE,
        noise=tree_edits.BUILD_NOISE,
        engine=engine.version,
        image_id=image.id,
        notes=_frontend_notes(held),
        platform=image_lock.platform_of(image.architecture),
    )


def _base(
    order: BuildOrder, folder: _BuildFolder, engine: Engine, work: Path, report: ProgressReporter
) -> base_image.ReadyBase:
    platform, base = folder.spec.build.platform, folder.spec.base
    pinned = folder.pinned
    if pinned and not foreign_platform.is_of(pinned.lock, platform or engine.platform, required=pinned.required):
        pinned = None
    if base is None:
        return base_image.own(
            engine,
            folder.needs.base,
            platform_=platform,
            on_line=report.line,
            pinned=pinned,
            today=order.relock,
        )
    return base_image.ready(
        engine,
        base,
        work=work,
        platform_=platform,
        fresh=order.fresh or order.relock,
        on_line=report.line,
        other=folder.other,
        pinned=pinned,
        today=order.relock,
    )


def _sent(
    folder: _BuildFolder, held: buildkit.BuildKitSession | None, ready: base_image.ReadyBase, work: Path
) -> tuple[build_context.ContextFile, ...]:
    """The files for the engine, with the Dockerfile as the session sends it, and with the base that the lock names."""
    text = held.dockerfile if held else folder.needs.text
    if ready.exact and folder.spec.base is None:
        text = dockerfile_lines.with_image(text, folder.needs.on_base, ready.exact)
    if text == folder.needs.text:
        return folder.files
    file = work / "Dockerfile"
    file.write_text(text, encoding="utf-8")
    return build_context.replacing(folder.files, folder.dockerfile.relative_to(folder.context).as_posix(), file)


def _with_automatic(options: Build, needs: dockerfile_needs.Dockerfile, engine: Engine) -> Build:
    """The options for the classic builder, with the values of the arguments that only BuildKit sets by itself."""
    target = options.platform or engine.platform
    values = dockerfile_arguments.values(needs.automatic, target=target, build=engine.platform)
    return options.model_copy(update={"args": {**values, **options.args}})


def _frontend_notes(held: buildkit.BuildKitSession | None) -> tuple[str, ...]:
    if held is None or not held.fetched or "@sha256:" in held.fetched:
        return ()
    return (f"the Dockerfile takes {held.fetched} without a digest: another build may take another image",)


def ways(engine: Engine, image: EngineImage) -> tuple[squash_and_lock.Way, ...]:
    """Ways to read an engine's image: its layers if this process can mount them, and the engine's export."""

    @contextlib.contextmanager
    def mounted() -> Iterator[squash.Tree]:
        yield squash.Tree(layers=image.layers)

    @contextlib.contextmanager
    def streamed() -> Iterator[squash.TarStream]:
        with engine.export(image.id) as chunks:
            yield squash.TarStream(members=tree_stream.parsed(chunks))

    return (mounted, streamed) if image.layers else (streamed,)
