"""Pins the images of a run: the digest of each, and a check that it contains the packages that its programs import."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kit import runtimes
from kit.config import Resolved
from kit.errors import ConfigError, Fault, NotBuiltError
from kit.planning.paths import ClusterPaths
from kit.planning.placement import RolePlacement
from kit.schema.image_choice import is_reference

if TYPE_CHECKING:
    from kit.schema.image import ImageLock


@dataclass(frozen=True, kw_only=True)
class Pin:
    """The pin of one image. image: its path as the nodes see it, or a reference; empty without a container.

    stored: the .sqsh in the store; empty for a reference. lock: of an image that the kit built or imported.
    """

    image: str = ""
    stored: str = ""
    digest: str = ""
    lock: ImageLock | None = None


@dataclass(frozen=True, kw_only=True)
class Pins:
    """The pinned images of a run. own: the job's. of_roles: the images that roles name, by name."""

    own: Pin
    of_roles: Mapping[str, Pin]

    def find_pin(self, placed: RolePlacement) -> Pin:
        """The image of a role."""
        return self.of_roles.get(placed.role.image or "", self.own)

    @property
    def distinct(self) -> tuple[Pin, ...]:
        """Each image once, the job's own first; none without containers."""
        return tuple({p.image: p for p in (self.own, *self.of_roles.values()) if p.image}.values())


def pin_images(
    resolved: Resolved,
    roles: Sequence[RolePlacement],
    paths: ClusterPaths,
    *,
    lock: ImageLock | None,
    role_locks: Mapping[str | None, ImageLock | None],
) -> Pins:
    """The images of a job and its roles.

    ConfigError when one has no lock, or when the job's own lacks a package of its programs.
    """
    job = resolved.job
    if not runtimes.get(job.container.runtime).containerized:
        return Pins(own=Pin(), of_roles={})
    own = _pin(resolved, job.image_name, lock, store=paths.store, stage=paths.stage if job.staged else "", key="image")
    if own.lock:
        _check_packages(resolved, own.lock)
    locks = {**role_locks, job.image_name: lock}
    of_roles: dict[str, Pin] = {}
    for placed in roles:
        name = placed.role.image
        if name is not None and name not in of_roles:
            key = f"roles.{placed.name}.image"
            of_roles[name] = _pin(resolved, name, locks.get(name), store=paths.store, stage="", key=key)
    return Pins(own=own, of_roles=of_roles)


def _pin(resolved: Resolved, name: str | None, lock: ImageLock | None, *, store: str, stage: str, key: str) -> Pin:
    """The pin of an image. stage: folder on the nodes to which the image is copied; empty for no copy. key: where the job names it.

    ConfigError when there is no image or no lock of it, or when the runtime cannot start it.
    """
    file = resolved.job_file
    runtime = resolved.job.container.runtime
    if name is None:
        hint = 'image = "train-cpu", or --no-container to run on the node itself'
        raise ConfigError.of(Fault(key=key, problem="the job names no image to run in", hint=hint), file=file)
    if is_reference(name):
        if not runtimes.get(runtime).pulls:
            problem = f"the runtime {runtime!r} starts image files, and {name!r} is a reference to a registry"
            raise ConfigError.of(Fault(key=key, problem=problem, hint=f"kit import-image {name}"), file=file)
        return Pin(image=name, digest=name.rpartition("@")[2])
    if lock is None:
        option = f" --store {shlex.quote(store)}" if resolved.cluster.paths.store is not None else ""
        problem = f"{name!r} has no image.lock: it was not built yet, so its digest is unknown"
        unbuilt = NotBuiltError.of(Fault(key=key, problem=problem, hint=f"kit build-image {name}{option}"), file=file)
        unbuilt.image = name
        raise unbuilt
    stored = f"{store}/sha256/{lock.sha256}.sqsh"
    return Pin(
        image=f"{stage}/{lock.sha256}.sqsh" if stage else stored,
        stored=stored,
        digest=f"sha256:{lock.sha256}",
        lock=lock,
    )


def _check_packages(resolved: Resolved, lock: ImageLock) -> None:
    """ConfigError when the image lacks a package that the launcher's programs import. The lock lists them, so no node is needed."""
    launcher, job = resolved.launcher, resolved.job
    # Where a launcher has no program of its own, what it needs is there for everybody's.
    required = launcher.required(job) if job.is_launchers or launcher.script is None else ()
    lacking = lock.packages.lacking(required)
    if lacking:
        problem = f"{lock.name!r} lacks {', '.join(lacking)}, which launcher {resolved.job.launcher!r} needs"
        hint = f"add it to containers/{lock.name}/requirements.in, then: kit build-image {lock.name}"
        raise ConfigError.of(Fault(key="image", problem=problem, hint=hint), file=resolved.job_file)
