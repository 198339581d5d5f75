"""`kit import-image`: turns an existing image into one .sqsh in the store, and writes the lock that names it."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from kit.errors import UsageError
from kit.files import cross_host_lock
from kit.images import image_lock, import_sources, squash_and_lock, store
from kit.images.build.build_context import RECIPE
from kit.images.progress import ProgressReporter
from kit.images.squash import squash
from kit.schema.image import Squash
from kit.schema.schema_base import NAME


@dataclass(frozen=True, kw_only=True)
class ImportOrder:
    """The image to import. uri: see `import_sources.ready`. name: in containers/; empty: the last part of the source.

    platform: `linux/arm64`; empty: this machine's. relock: see squash_and_lock.Target.
    """

    uri: str
    name: str
    project: Path
    store: Path
    options: Squash = field(default_factory=Squash)
    locked: bool = False
    platform: str = ""
    relock: bool = False


def run(order: ImportOrder, report: ProgressReporter) -> squash_and_lock.Outcome:
    """Import unless the store already has the same bytes; see ImportOrder and squash_and_lock.Outcome.

    UsageError for a wrong source or name, EngineError and ImageError when it cannot be fetched, LockError with `locked`.
    """
    start = time.monotonic()
    name = order.name or import_sources.default_name(order.uri)
    if not NAME.holds(name):
        raise UsageError(
            f"{name!r} is not a valid name of an image", hint="--name with lower case letters, digits and . _ -"
        )
    lock_file = order.project / "containers" / name / image_lock.FILE
    if (lock_file.parent / "image.toml").is_file():
        raise UsageError(
            f"image {name} exists already: it is built from {lock_file.parent}",
            hint="import under another name with --name",
        )
    squash.mksquashfs()  # find out that mksquashfs is missing before the long import, not after it
    store.prepare_store(order.store)
    with (
        cross_host_lock.hold(
            store.lock_file(order.store, name), on_wait=lambda who: report.stage(f"waiting for {who}")
        ),
        store.workspace(order.store) as work,
    ):
        ready = import_sources.ready(order.uri, work, report, platform=order.platform)
        target = squash_and_lock.Target(
            name=name,
            store=order.store,
            lock_file=lock_file,
            source=ready.uri,
            inputs=_inputs(order, ready),
            squash=order.options,
            locked=order.locked,
            relock=order.relock,
        )
        done = squash_and_lock.unchanged(target) if ready.content.digest else None
        if done is None:
            done = squash_and_lock.make(target, ready.content, work, report)
    return replace(done, seconds=time.monotonic() - start)


def _inputs(order: ImportOrder, ready: import_sources.ImageSource) -> str:
    options = order.options.model_dump(mode="json", exclude={"memory"})
    meaning = [RECIPE, ready.uri, ready.content.digest, options]
    return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()
