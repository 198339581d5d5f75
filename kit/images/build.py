"""`kit build-image`: an image's folder -> one .sqsh in the store, and the lock that names it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from kit import __version__, resources
from kit.config import load_model
from kit.errors import LockError
from kit.images import base, context, inventory, lease, lock, squash, store, tree, wheels
from kit.images.engine import Engine, EngineImage, connect
from kit.images.progress import Report
from kit.spec.image import ImageLock, ImageSpec, LockedBase, LockedTools

_SOURCE = "build"


@dataclass(frozen=True, kw_only=True)
class Order:
    """What to build, where to.

    locked: fail when the result is not what the lock names, and leave lock and store as they are. fresh: from nothing, using
    neither the engine's cache nor an earlier base or download.
    """

    name: str
    project: Path
    store: Path
    locked: bool = False
    fresh: bool = False


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """built: False when nothing had changed. changes: what the lock says now that it did not say before. seconds: wall."""

    lock: ImageLock
    lock_file: Path
    image: Path
    built: bool
    method: str
    changes: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class _Inputs:
    """The folder as it is now, and the lock as it was."""

    folder: Path
    spec: ImageSpec
    files: tuple[context.ContextFile, ...]
    digest: str
    lock_file: Path

    @property
    def locked(self) -> ImageLock | None:
        return lock.read(self.lock_file) if self.lock_file.is_file() else None


def build(order: Order, report: Report) -> Outcome:
    """Build the image unless the store has it already; see Order and Outcome.

    ConfigError for a wrong image.toml, EngineError without an engine, LockError with `locked`, ImageError for the rest.
    """
    start = time.monotonic()
    inputs = _inputs(order)
    done = None if order.fresh else _nothing_to_do(inputs, order.store)
    if done is None:
        store.prepare(order.store)
        with lease.hold(store.lock_file(order.store, order.name), on_wait=lambda who: _waiting(report, who)):
            done = None if order.fresh else _nothing_to_do(inputs, order.store)
            if done is None:
                done = _build(order, inputs, report)
    return replace(done, seconds=time.monotonic() - start)


def _waiting(report: Report, who: str) -> None:
    report.stage(f"{who} is building this image; waiting, then using it")


def _inputs(order: Order) -> _Inputs:
    entry = resources.find("containers", order.name, project_dir=order.project)
    spec = load_model(entry.path, ImageSpec)
    files = context.scan(entry.folder)
    return _Inputs(
        folder=entry.folder,
        spec=spec,
        files=files,
        digest=context.digest(spec, files),
        lock_file=lock.place(entry, project=order.project),
    )


def _nothing_to_do(inputs: _Inputs, store_dir: Path) -> Outcome | None:
    locked = inputs.locked
    if locked is None or locked.inputs != inputs.digest:
        return None
    image = store.path(store_dir, locked.sha256)
    if not image.is_file() or image.stat().st_size != locked.size:
        return None
    return Outcome(
        lock=locked, lock_file=inputs.lock_file, image=image, built=False, method="", changes=(), seconds=0.0
    )


def _build(order: Order, inputs: _Inputs, report: Report) -> Outcome:
    squash.mksquashfs()  # a missing program is known before the long work, not after it
    engine = connect()
    with store.workspace(order.store) as work:
        ready, image = _in_engine(order, inputs, engine, work, report)
        finished = work / "image.sqsh"
        edit = tree.edit(image.config, source=f"kit build-image {order.name}", noise=tree.BUILD_NOISE)
        method = _squash(engine, image, edit, finished, inputs.spec, report)
        report.stage("checking and locking")
        new = _lock_of(order, inputs, ready.locked, engine, image, finished)
        old = inputs.locked
        changes = tuple(lock.differences(old, new)) if old else ()
        if order.locked:
            _must_be_locked(order.name, old, new, changes)
        notes = {"name": order.name, "source": _SOURCE, "method": method, "made": time.time(), "image_id": image.id}
        store.publish(order.store, finished, new.sha256, notes)
    lock.write(inputs.lock_file, new)
    for warning in tree.warnings(image.config):
        report.warn(warning)
    return Outcome(
        lock=new,
        lock_file=inputs.lock_file,
        image=store.path(order.store, new.sha256),
        built=True,
        method=method,
        changes=changes,
        seconds=0.0,
    )


def _in_engine(
    order: Order, inputs: _Inputs, engine: Engine, work: Path, report: Report
) -> tuple[base.ReadyBase, EngineImage]:
    """Base, packages, then the Dockerfile; the result as the engine holds it."""
    spec = inputs.spec
    report.stage("making the base ready")
    ready = base.ready(
        engine, spec.base, work=work, platform_=spec.build.platform, fresh=order.fresh, on_line=report.line
    )
    packages: tuple[Path, ...] = ()
    if spec.python is not None:
        report.stage("fetching Python packages against the hash lock")
        packages = wheels.fetch(spec.python, inputs.folder, fresh=order.fresh, on_line=report.line)
    report.stage(f"building with the engine (Docker {engine.version}), network: {spec.build.network}")
    tag = f"kit-image/{order.name}:latest"
    image_id = engine.build(
        context.stream(inputs.files, packages),
        tag=tag,
        base=ready.reference,
        options=spec.build,
        no_cache=order.fresh,
        on_line=report.line,
    )
    image = engine.inspect(image_id or tag)
    assert image is not None, "an image that was just built"
    return ready, image


def _squash(engine: Engine, image: EngineImage, edit: tree.Edit, target: Path, spec: ImageSpec, report: Report) -> str:
    """The fastest way that this machine allows; returns its name. All ways write the same bytes."""
    options = squash.Options(squash=spec.squash)
    if image.layers:
        with report.counting(f"squashing by {squash.Tree.method}", image.size) as advance:
            squash.write(squash.Tree(layers=image.layers), edit, target, options, on_bytes=advance)
        return squash.Tree.method
    with (
        report.counting(f"squashing by {squash.Stream.method}", image.size) as advance,
        engine.export(image.id) as chunks,
    ):
        squash.write(squash.Stream(chunks=chunks), edit, target, options, on_bytes=advance)
    return squash.Stream.method


def _lock_of(
    order: Order, inputs: _Inputs, locked_base: LockedBase, engine: Engine, image: EngineImage, finished: Path
) -> ImageLock:
    networked = inputs.spec.build.network != "none"
    return ImageLock(
        name=order.name,
        sha256=store.digest_of(finished),
        size=finished.stat().st_size,
        source=_SOURCE,
        inputs=inputs.digest,
        reproducible=not networked,
        notes=("the build had a network: another build may give other bytes",) if networked else (),
        base=locked_base,
        squash=inputs.spec.squash,
        config=image.config,
        tools=LockedTools(kit=__version__, mksquashfs=squash.mksquashfs()[1], engine=engine.version, image_id=image.id),
        packages=inventory.packages(finished),
    )


def _must_be_locked(name: str, old: ImageLock | None, new: ImageLock, changes: tuple[str, ...]) -> None:
    if old is None:
        raise LockError(
            f"image {name} has no lock to hold it to", hint=f"run 'kit build-image {name}' without --locked"
        )
    if old.sha256 == new.sha256:
        return
    causes = [change for change in changes if not change.startswith(("sha256:", "size:"))]
    if old.inputs != new.inputs:
        causes.insert(0, f"the files of containers/{name}: inputs {old.inputs[:12]} -> {new.inputs[:12]}")
    if not causes:
        causes = ["no input that the kit knows of: a step of the Dockerfile gives other bytes each time"]
    lines = "\n".join(f"  {cause}" for cause in causes)
    raise LockError(
        f"image {name}: built sha256:{new.sha256}, and the lock says sha256:{old.sha256}; what changed:\n{lines}",
        hint=f"if that is meant, run 'kit build-image {name}' without --locked and commit the new lock",
    )
