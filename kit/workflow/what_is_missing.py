"""Finds what a job needs on this machine before its submit, and makes it: the embedded cluster, and the files of its images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit import config, data_folders
from kit.images import image_lock
from kit.images import store as store_files
from kit.record import find_runs
from kit.schema.cluster import Cluster
from kit.slurm import embedded
from kit.submission.prepare_run import Prepared


@dataclass(frozen=True)
class JobPlace:
    """A cluster by the name that a command was given (None: the default one), and the project that the job belongs to."""

    cluster: str | None
    project: Path

    @property
    def is_one_cluster(self) -> bool:
        """Whether it is one cluster, not a choice among several or a pair."""
        return self.cluster != "any" and "," not in (self.cluster or "")

    def entry(self) -> data_folders.Entry:
        """The cluster's file. ConfigError for an unknown one."""
        return config.cluster_entry(self.cluster, self.project)

    def down(self) -> str:
        """The name of the embedded cluster if it is not up; empty for any other cluster."""
        entry = self.entry()
        is_embedded = config.load_model(entry.path, Cluster).embedded
        return entry.name if is_embedded and embedded.find(entry.name) is None else ""

    def store(self) -> Path:
        """The image store on this machine for the cluster. Images for a cluster over ssh are made here first."""
        rules = config.load_model(self.entry().path, Cluster)
        return data_folders.image_store() if rules.ssh else find_runs.store_of(rules, self.project)


def lacking(name: str, store: Path, project: Path) -> bool:
    """Whether `kit build-image` has to make an image: its lock or its file is not there. Imported images are not counted."""
    place = image_lock.find(name, project=project)
    return place is None or store_files.lacks_built(store, image_lock.read_lock(place))


def unbuilt(job: Mapping[str, Any], place: JobPlace) -> str:
    """The name of the job's image if it has to be built first; else empty, also for a reference and for an unknown name."""
    name = job.get("image")
    known = isinstance(name, str) and name in data_folders.names("containers", project_dir=place.project)
    return str(name) if known and lacking(str(name), place.store(), place.project) else ""


def images(jobs: Iterable[Prepared]) -> dict[str, Path]:
    """Name -> store of each image that has a lock and no file, and that a build makes. Clusters over ssh have their own."""
    stores: dict[str, Path] = {}
    for job in jobs:
        for pinned in job.plan.decisions.pins.distinct if job.host.shares_files and job.earlier is None else ():
            store = Path(pinned.stored).parent.parent
            if pinned.lock and store_files.lacks_built(store, pinned.lock):
                stores[pinned.lock.name] = store
    return stores
