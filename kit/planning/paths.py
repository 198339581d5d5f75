"""Paths of a plan: placeholders filled in, relative paths made absolute, and each checked for characters that scripts or runtimes
cannot handle.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from kit import runtimes
from kit.config import Resolved
from kit.errors import ConfigError, Fault, nearest
from kit.planning.plan_inputs import Site
from kit.schema.mount import OF_THE_IMAGE, Mount
from kit.schema.run_paths import CONTAINER_CACHE, CONTAINER_RUN, CONTAINER_WORKSPACE, RunPaths
from kit.schema.schema_base import mountable
from kit.schema.wrong_value_messages import Invalid

# In a file name, sbatch reads `%` as a pattern. It splits header lines at blanks.
_RUN_DIR = re.compile(r"^/[A-Za-z0-9_./+=@-]*$")
_HEADER_WORD = re.compile(r"^/[A-Za-z0-9_./%+=@,:-]*$")


@dataclass(frozen=True, kw_only=True)
class Inside:
    """Folders as the ranks see them: of the run, of the job, and the node-local cache. workdir: where programs start."""

    run: str
    workspace: str
    cache: str
    workdir: str


@dataclass(frozen=True, kw_only=True)
class ClusterPaths:
    """The paths of one run on its cluster.

    cache: node-local. store: of the images. output, error: of the batch script, with Slurm's patterns; without `error` both streams
    go to one file. workspace: the run's own copy, or the job's folder. mounts: the kit's own, then the job's, with absolute
    sources.
    """

    run: RunPaths
    cache: str
    store: str
    output: str
    error: str | None
    workspace: str
    mounts: tuple[Mount, ...]
    inside: Inside

    @property
    def stage(self) -> str:
        """Node-local folder of staged images."""
        return f"{self.cache}/images"


def find_paths(resolved: Resolved, site: Site) -> ClusterPaths:
    """All paths of a completed job. ConfigError, naming file and key, for a path that cannot be used."""
    cluster_file = f"clusters/{resolved.cluster_name}.toml"
    run = RunPaths(site.run_dir)
    if not _RUN_DIR.match(str(run.root)):
        problem = f"{str(run.root)!r} has characters that an #SBATCH line cannot hold, such as blanks and '%'"
        hint = "a path of letters, digits and _ . / + = @ -"
        odd = next((name for name in resolved.project.parts if not _RUN_DIR.match(f"/{name.strip('/')}")), None)
        if odd is not None and run.root.is_relative_to(resolved.project):
            problem = (
                f"the runs are in the project, and its folder {odd!r} has characters that an #SBATCH line cannot hold, such as "
                "blanks and '%'"
            )
            hint = (
                f"mv {shlex.quote(odd)} {re.sub('[^A-Za-z0-9_.+=@-]+', '-', odd)}, or set paths.runs in {cluster_file}"
            )
            raise ConfigError.of(Fault(file=resolved.job_file, key="", problem=problem, hint=hint))
        raise ConfigError.of(Fault(file=cluster_file, key="paths.runs", problem=problem, hint=hint))
    known = _placeholders(resolved, site)
    workspace = str(run.workspace if site.snapshot else resolved.job_dir)
    cache = _filled(resolved.cluster.paths.cache, known, cluster_file, "paths.cache")
    return ClusterPaths(
        run=run,
        cache=cache,
        store=_store(resolved, site, known, cluster_file),
        output=_log(resolved, known, "output") or str(run.batch_log),
        error=_log(resolved, known, "error"),
        mounts=_mounts(resolved, known, run, cache, workspace),
        workspace=workspace,
        inside=_inside(resolved, run, cache, workspace),
    )


def _store(resolved: Resolved, site: Site, known: dict[str, str], cluster_file: str) -> str:
    """The image store: the cluster's own, else the site's default, as the image commands choose it."""
    named = resolved.cluster.paths.store
    if named is None:
        return _checked(site.store, "KIT_STORE", "")
    return _filled(named, known, cluster_file, "paths.store")


def _placeholders(resolved: Resolved, site: Site) -> dict[str, str]:
    return {
        "project": str(resolved.project),
        "job": str(resolved.job_dir),
        "run": str(site.run_dir),
        "user": site.user,
        "home": site.home,
        "data": site.data,
    }


def _inside(resolved: Resolved, run: RunPaths, cache: str, workspace_outside: str) -> Inside:
    contained = runtimes.get(resolved.job.container.runtime).containerized
    workspace = CONTAINER_WORKSPACE if contained else workspace_outside
    return Inside(
        run=CONTAINER_RUN if contained else str(run.root),
        workspace=workspace,
        cache=CONTAINER_CACHE if contained else cache,
        workdir=resolved.job.workdir or workspace,
    )


def _log(resolved: Resolved, known: dict[str, str], key: Literal["output", "error"]) -> str | None:
    """The job's slurm.output or slurm.error as an absolute path, in which Slurm fills in its own patterns; None if the job sets
    none.
    """
    pattern: str | None = getattr(resolved.job.slurm, key)
    if pattern is None:
        return None
    file, dotted = resolved.job_file, f"slurm.{key}"
    filled = _filled(pattern, known, file, dotted)
    path = filled if filled.startswith("/") else f"{resolved.job_dir}/{filled}"
    # The value of a placeholder may contain `%`, which Slurm would read as a pattern.
    if not _HEADER_WORD.match(path) or path.count("%") != pattern.count("%"):
        problem = (
            f"{path!r} has characters that an #SBATCH line cannot hold, such as blanks; its folder may have no '%'"
        )
        hint = f'{key} = "/shared/logs/%x-%j.log"'
        raise ConfigError.of(Fault(file=file, key=dotted, problem=problem, hint=hint))
    return path


def _mounts(resolved: Resolved, known: dict[str, str], run: RunPaths, cache: str, workspace: str) -> tuple[Mount, ...]:
    """The run folder, the workspace and the cache, then the job's own mounts."""
    file = resolved.job_file
    own = [
        Mount(source=str(run.root), target=CONTAINER_RUN),
        Mount(source=_checked(workspace, file, ""), target=CONTAINER_WORKSPACE),
        Mount(source=cache, target=CONTAINER_CACHE),
    ]
    taken = {m.target for m in own}
    for mount in resolved.mounts:
        if mount.target in taken:
            problem = (
                f"two mounts share the target {mount.target}; the kit itself takes {', '.join(m.target for m in own)}"
            )
            name = mount.target.strip("/").replace("/", "-")
            hint = f'target = "/mnt/{name}"'
            raise ConfigError.of(Fault(file=file, key="mounts", problem=problem, hint=hint))
        taken.add(mount.target)
    jobs = (m.model_copy(update={"source": _source(m.source, resolved, known)}) for m in resolved.mounts)
    return (*own, *jobs, *_task_prolog(resolved, taken))


def _task_prolog(resolved: Resolved, taken: set[str]) -> Iterator[Mount]:
    """The folder of Slurm's TaskProlog for a Pyxis container; the file alone from a folder that has programs of the image."""
    prolog = resolved.cluster.container.task_prolog
    if prolog is None or resolved.job.container.runtime != "pyxis":
        return
    folder = str(PurePosixPath(prolog).parent)
    shared = PurePosixPath(folder).is_relative_to("/usr") or folder in OF_THE_IMAGE | {"/"}
    path = prolog if shared else folder
    if not any(PurePosixPath(prolog).is_relative_to(target) for target in taken):
        yield Mount(source=path, target=path, flags=("ro",))


def _source(source: str, resolved: Resolved, known: dict[str, str]) -> str:
    if source == "tmpfs":
        return source
    path = _filled(source, known, resolved.job_file, "mounts")
    return path if path.startswith("/") else _checked(f"{resolved.job_dir}/{path}", resolved.job_file, "mounts")


def _filled(text: str, known: dict[str, str], file: str, key: str) -> str:
    if text == "~" or text.startswith("~/"):
        text = known["home"] + text[1:]
    elif text.startswith("~"):
        problem = f"{text!r} is in another user's home folder, which the kit does not look up"
        hint = f'a path that starts with "/", such as "/home/{text[1:]}"'
        raise ConfigError.of(Fault(file=file, key=key, problem=problem, hint=hint))
    for word in re.findall(r"\{(\w*)\}", text):
        if word not in known:
            near = nearest(word, known) or "home"
            problem, allowed = (
                f"{{{word}}} is not a placeholder, in {text!r}",
                ", ".join(f"{{{name}}}" for name in known),
            )
            hint = text.replace(f"{{{word}}}", f"{{{near}}}")
            raise ConfigError.of(Fault(file=file, key=key, problem=problem, allowed=allowed, hint=hint))
    return _checked(re.sub(r"\{(\w+)\}", lambda found: known[found[1]], text), file, key)


def _checked(path: str, file: str, key: str) -> str:
    try:
        return mountable(path)
    except Invalid as error:
        problem = f"{path!r} cannot be mounted: {error.problem}"
        hint = f"ln -s {shlex.quote(path)} {shlex.quote(str(error.write))}"
        raise ConfigError.of(Fault(file=file, key=key, problem=problem, hint=hint)) from None
