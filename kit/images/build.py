"""`kit build-image`: an image's folder -> one .sqsh in the store, and the lock that names it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from kit import data_folders
from kit.config import load_model
from kit.images import base, context, edits, entries, lease, lock, publish, squash, store, wheels
from kit.images.engine import Engine, EngineImage, connect
from kit.images.progress import Report
from kit.spec.image import ImageSpec


@dataclass(frozen=True, kw_only=True)
class Order:
    """What to build, where to.

    locked, relock: see publish.Target. fresh: from nothing, using neither the engine's cache nor an earlier base or download.
    """

    name: str
    project: Path
    store: Path
    locked: bool = False
    fresh: bool = False
    relock: bool = False


@dataclass(frozen=True, kw_only=True)
class _Folder:
    """The image's folder as it is now."""

    path: Path
    spec: ImageSpec
    files: tuple[context.ContextFile, ...]


def build(order: Order, report: Report) -> publish.Outcome:
    """Build the image unless the store has it already; see Order and publish.Outcome.

    ConfigError for a wrong image.toml, EngineError without an engine, LockError with `locked`, ImageError for the rest.
    """
    start = time.monotonic()
    folder, target = _read(order)
    done = None if order.fresh else publish.unchanged(target)
    if done is None:
        store.prepare(order.store)
        with lease.hold(store.lock_file(order.store, order.name), on_wait=lambda who: _waiting(report, who)):
            done = None if order.fresh else publish.unchanged(target)
            if done is None:
                squash.mksquashfs()  # a missing program is known before the long work, not after it
                engine = connect()
                with store.workspace(order.store) as work:
                    content = _content(order, folder, engine, work, report)
                    done = publish.make(target, content, work, report)
    return replace(done, seconds=time.monotonic() - start)


def _waiting(report: Report, who: str) -> None:
    report.stage(f"{who} is making this image; waiting, then using it")


def _read(order: Order) -> tuple[_Folder, publish.Target]:
    entry = data_folders.find("containers", order.name, project_dir=order.project)
    spec = load_model(entry.path, ImageSpec)
    files = context.scan(entry.folder)
    networked = spec.build.network != "none"
    target = publish.Target(
        name=order.name,
        store=order.store,
        lock_file=lock.place(entry, project=order.project),
        source="build",
        inputs=context.digest(spec, files),
        squash=spec.squash,
        locked=order.locked,
        relock=order.relock,
        notes=("the build had a network: another build may give other bytes",) if networked else (),
    )
    return _Folder(path=entry.folder, spec=spec, files=files), target


def _content(order: Order, folder: _Folder, engine: Engine, work: Path, report: Report) -> publish.Content:
    """Base, packages, then the Dockerfile."""
    spec = folder.spec
    report.stage("making the base ready")
    ready = base.ready(
        engine, spec.base, work=work, platform_=spec.build.platform, fresh=order.fresh, on_line=report.line
    )
    packages: tuple[Path, ...] = ()
    if spec.python is not None:
        report.stage("fetching Python packages against the hash lock")
        packages = wheels.fetch(spec.python, folder.path, fresh=order.fresh, on_line=report.line)
    report.stage(f"building with the engine (Docker {engine.version}), network: {spec.build.network}")
    tag = f"kit-image/{order.name}:latest"
    image_id = engine.build(
        context.stream(folder.files, packages),
        tag=tag,
        base=ready.reference,
        options=spec.build,
        no_cache=order.fresh,
        on_line=report.line,
    )
    image = engine.inspect(image_id or tag)
    assert image is not None, "an image that was just built"
    return publish.Content(
        ways=ways(engine, image),
        size=image.size,
        config=image.config,
        kind=ready.kind,
        reference=ready.name,
        digest=ready.digest,
        provenance="kit build-image",
        noise=edits.BUILD_NOISE,
        engine=engine.version,
        image_id=image.id,
    )


def ways(engine: Engine, image: EngineImage) -> tuple[publish.Way, ...]:
    """How to get at an engine's image: its layers where they can be reached, and the engine's export."""

    @contextlib.contextmanager
    def mounted() -> Iterator[squash.Tree]:
        yield squash.Tree(layers=image.layers)

    @contextlib.contextmanager
    def streamed() -> Iterator[squash.Stream]:
        with engine.export(image.id) as chunks:
            yield squash.Stream(members=entries.parsed(chunks))

    return (mounted, streamed) if image.layers else (streamed,)
