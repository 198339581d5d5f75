"""Paths of a plan: placeholders filled in, relative ones anchored, each checked for what scripts and runtimes can carry."""

from __future__ import annotations

import re
from typing import Literal

from kit.config import Resolved
from kit.errors import ConfigError, Fault
from kit.planning.site import Site
from kit.spec.base import mountable
from kit.spec.mount import Mount
from kit.spec.paths import CONTAINER_CACHE, CONTAINER_RUN, CONTAINER_WORKSPACE

# sbatch reads `%` in a file name as a pattern and splits header lines at blanks.
_RUN_DIR = re.compile(r"^/[A-Za-z0-9_./+=@-]*$")
_HEADER_WORD = re.compile(r"^/[A-Za-z0-9_./%+=@,:-]*$")


class Places:
    """The paths of one job at one site. ConfigError, naming file and key, for a path that cannot be carried."""

    def __init__(self, resolved: Resolved, site: Site) -> None:
        self._resolved, self._site = resolved, site
        self._cluster_file = f"clusters/{resolved.cluster_name}.toml"
        self._known = {
            "project": str(resolved.project),
            "job": str(resolved.job_dir),
            "run": str(site.run_dir),
            "user": site.user,
            "home": site.home,
            "data": site.data,
        }
        if not _RUN_DIR.match(str(site.run_dir)):
            allowed = "letters, digits and _ . / + = @ - (sbatch splits its header at blanks and expands '%')"
            raise ConfigError.of(
                Fault(file=self._cluster_file, key="paths.runs", got=repr(str(site.run_dir)), allowed=allowed)
            )

    @property
    def cache(self) -> str:
        """Node-local cache folder, on the host."""
        return self._fill(self._resolved.cluster.paths.cache, self._cluster_file, "paths.cache")

    @property
    def stage(self) -> str:
        """Node-local folder of staged images, on the host."""
        return f"{self.cache}/images"

    @property
    def store(self) -> str:
        """The image store, on the host."""
        return self._fill(self._resolved.cluster.paths.store, self._cluster_file, "paths.store")

    def log(self, key: Literal["output", "error"]) -> str | None:
        """The job's slurm.output or slurm.error, absolute, with Slurm's patterns left to Slurm; None where the job names none."""
        pattern: str | None = getattr(self._resolved.job.slurm, key)
        if pattern is None:
            return None
        file, dotted = self._resolved.job_file, f"slurm.{key}"
        filled = self._fill(pattern, file, dotted)
        path = filled if filled.startswith("/") else f"{self._resolved.job_dir}/{filled}"
        # What a placeholder stood for may hold a `%`, too: to Slurm it would be a pattern.
        if not _HEADER_WORD.match(path) or path.count("%") != pattern.count("%"):
            allowed = "a place without blanks and '%': sbatch splits its header at the one and expands the other"
            raise ConfigError.of(Fault(file=file, key=dotted, got=repr(path), allowed=allowed))
        return path

    def mounts(self) -> tuple[Mount, ...]:
        """The run folder, the job's folder and the cache, then the job's own, with absolute sources."""
        job_dir = self._check(str(self._resolved.job_dir), self._resolved.job_file, "its folder")
        own = [
            Mount(source=str(self._site.run_dir), target=CONTAINER_RUN),
            Mount(source=job_dir, target=CONTAINER_WORKSPACE),
            Mount(source=self.cache, target=CONTAINER_CACHE),
        ]
        taken = {m.target for m in own}
        for mount in self._resolved.mounts:
            if mount.target in taken:
                hint = "the kit mounts the run folder, the job's folder and the cache itself"
                fault = Fault(
                    file=self._resolved.job_file, key="mounts", got=mount.target, allowed="each target once", hint=hint
                )
                raise ConfigError.of(fault)
            taken.add(mount.target)
        return (*own, *(m.model_copy(update={"source": self._source(m.source)}) for m in self._resolved.mounts))

    def _source(self, source: str) -> str:
        if source == "tmpfs":
            return source
        path = self._fill(source, self._resolved.job_file, "mounts")
        return (
            path
            if path.startswith("/")
            else self._check(f"{self._resolved.job_dir}/{path}", self._resolved.job_file, "mounts")
        )

    def _fill(self, text: str, file: str, key: str) -> str:
        for word in re.findall(r"\{(\w*)\}", text):
            if word not in self._known:
                allowed = ", ".join(f"{{{name}}}" for name in self._known)
                raise ConfigError.of(Fault(file=file, key=key, got=f"{{{word}}} in {text!r}", allowed=allowed))
        return self._check(re.sub(r"\{(\w+)\}", lambda found: self._known[found[1]], text), file, key)

    @staticmethod
    def _check(path: str, file: str, key: str) -> str:
        try:
            return mountable(path)
        except ValueError as error:
            raise ConfigError.of(
                Fault(file=file, key=key, got=repr(path), allowed=f"a path that a mount can carry: {error}")
            ) from None
