"""plan(): turns job, cluster and image lock into files and an argv. It reads no clock and no environment, and from the disk only
the kit's templates.

`decide` runs once: it completes the job, then decides allocation, framework, placement, paths and images. Later steps only read the
Decisions. `kit render` prints a plan. `kit submit` writes the same plan and runs its argv, so a dry run shows the real run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import tomli_w

from kit import frameworks
from kit.allocation import Allocation, allocate
from kit.config import Resolved
from kit.errors import Fault
from kit.planning import (
    cpu_builds,
    foreign_script,
    nested_launchers,
    open_files,
    parts,
    rank_files,
    site_shell,
)
from kit.planning.batch_file import batch_script, foreign
from kit.planning.complete_job import completed
from kit.planning.decisions import Decisions
from kit.planning.paths import find_paths
from kit.planning.pinned_images import pin_images
from kit.planning.placement import RolePlacement, place_roles
from kit.planning.plan_inputs import Site
from kit.planning.sbatch_header import salloc_options
from kit.planning.steps import shell_checks, shell_step
from kit.planning.unexpanded_words import unexpanded
from kit.schema import slurm_filename_pattern
from kit.schema.job import LINES_TABLES, Job
from kit.schema.roles import filled
from kit.schema.schema_base import Model

if TYPE_CHECKING:
    from kit.schema.image import ImageLock


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """A file of the run folder: its name there, its text, its mode bits."""

    name: str
    text: str
    mode: int = 0o644


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that a run will do. `argv` submits it.

    shell_argv: a shell in the job's container, as a step of an allocation. salloc_argv: makes that allocation. shell_checks: steps
    before the shell. copies: folders to copy into the run folder, (source, name there). folders: to be made in the run folder.
    """

    # Files that record what the run was made from. 'locks/' has one file for each image.
    RECORDS: ClassVar[tuple[str, ...]] = ("job.toml", "cluster.toml", "launcher.toml", "locks/")

    decisions: Decisions
    files: tuple[PlanFile, ...]
    copies: tuple[tuple[Path, str], ...]
    folders: tuple[str, ...]
    argv: tuple[str, ...]
    salloc_argv: tuple[str, ...]
    shell_argv: tuple[str, ...]
    shell_checks: tuple[tuple[str, ...], ...]

    @property
    def warnings(self) -> tuple[Fault, ...]:
        """Warnings: the job will run, but perhaps not as intended."""
        resolved = self.decisions.resolved
        faults = [
            *unexpanded(resolved.job, resolved.job.roles),
            *site_shell.warnings(self.decisions),
            *open_files.warnings(self.decisions),
            *self._of_foreign(),
            *self.decisions.extra.warnings,
        ]
        return tuple(replace(one, file=resolved.job_file) for one in faults)

    def _of_foreign(self) -> Iterator[Fault]:
        text = foreign(self.decisions)
        return iter(()) if text is None else foreign_script.advice(self.decisions, text)

    @property
    def run_id(self) -> str:
        """The run's name."""
        return self.decisions.site.run_id

    @property
    def run_dir(self) -> Path:
        """The run's folder."""
        return self.decisions.site.run_dir

    @property
    def cluster(self) -> str:
        """The name of the cluster."""
        return self.decisions.resolved.cluster_name

    @property
    def job(self) -> Job:
        """The completed job."""
        return self.decisions.job

    @property
    def allocation(self) -> Allocation:
        """The job's nodes, and its share of each."""
        return self.decisions.allocation

    @property
    def roles(self) -> tuple[RolePlacement, ...]:
        """The placement of each role; a plain job is one role."""
        return self.decisions.roles

    @property
    def world_sizes(self) -> dict[str, int]:
        """Role -> its world size; a job without roles has only 'train'."""
        return self.decisions.world_sizes

    @property
    def records(self) -> tuple[PlanFile, ...]:
        """The files that record the run's inputs: job, cluster, launcher, and the locks of its images."""
        return tuple(file for file in self.files if file.name.startswith(self.RECORDS))

    def text_of(self, name: str) -> str:
        """The text of one of the plan's files."""
        return next(f.text for f in self.files if f.name == name)


def plan(
    resolved: Resolved,
    lock: ImageLock | None,
    site: Site,
    *,
    role_locks: Mapping[str | None, ImageLock | None] | None = None,
) -> Plan:
    """The plan of a job. lock: of the job's image; None without a container, or for a reference with its own digest.

    role_locks: name -> lock of the images that roles name.

    Raises ConfigError when the job does not fit the cluster, or when the runtime cannot handle a path.
    """
    decisions = decide(resolved, lock, site, role_locks=role_locks or {})
    return Plan(
        decisions=decisions,
        files=files(decisions),
        copies=copies(decisions),
        folders=folders(decisions),
        argv=("sbatch", "--parsable", str(decisions.paths.run.batch)),
        salloc_argv=("salloc", *salloc_options(decisions)),
        shell_argv=tuple(shell_step(decisions)),
        shell_checks=tuple(map(tuple, shell_checks(decisions))),
    )


def decide(
    resolved: Resolved, lock: ImageLock | None, site: Site, *, role_locks: Mapping[str | None, ImageLock | None]
) -> Decisions:
    """Make all decisions of a run, each once. Arguments and errors are those of `plan`."""
    resolved = completed(resolved, site)
    allocation = allocate(resolved)
    extra = frameworks.prepare_extra(resolved, allocation, lock.packages.pip if lock else {})
    roles = place_roles(resolved, allocation, extra.roles)
    paths = find_paths(resolved, site)
    pins = pin_images(resolved, roles, paths, lock=lock, role_locks=role_locks)
    decisions = Decisions(
        resolved=resolved, site=site, allocation=allocation, extra=extra, roles=roles, paths=paths, pins=pins
    )
    if decisions.has_gpus:
        cpu_builds.check(decisions)
    if decisions.runs_commands:
        nested_launchers.check(decisions)
    parts.check(decisions)
    return decisions


def files(decisions: Decisions) -> tuple[PlanFile, ...]:
    """All files of the run folder that the kit generates."""
    setup = (*decisions.resolved.cluster.setup, *decisions.job.setup)
    run = {"{run}": decisions.paths.inside.run}
    return (
        PlanFile(name="batch.sh", text=batch_script(decisions), mode=0o755),
        *(
            [PlanFile(name=foreign_script.FILE, text=own, mode=0o755)]
            if (own := foreign(decisions)) is not None
            else []
        ),
        *(
            [PlanFile(name="all-reduce.sh", text=rank_files.all_reduce(decisions))]
            if decisions.job.preflight.all_reduce_s
            else []
        ),
        *([PlanFile(name="setup.sh", text="".join(f"{line}\n" for line in setup))] if setup else []),
        *(
            PlanFile(name=f"{t}-lines.sh", text="".join(f"{n}\n" for n in o.lines))
            for t, o in decisions.job.lines.items()
        ),
        *(file for placed in decisions.roles if placed.scripts == placed.name for file in _files_of(decisions, placed)),
        *(PlanFile(name=n, text=filled(t, run)) for n, t in decisions.extra.files.items()),
        *_records(decisions),
        *_kits_own(decisions),
    )


def _kits_own(decisions: Decisions) -> Iterator[PlanFile]:
    """The kit's own programs and libraries that this run uses, and what its ranks can import instead of those that it does not."""
    for name, text in parts.texts(decisions).items():
        yield PlanFile(name=name, text=text, mode=0o755 if name.startswith("bin/") else 0o644)


def _records(decisions: Decisions) -> Iterator[PlanFile]:
    """Files that record the run's inputs, for `kit rerun` and for comparing runs."""
    unused = {name for name in LINES_TABLES if name not in decisions.job.lines}
    yield PlanFile(name="job.toml", text=_toml(decisions.job, without=unused))
    yield PlanFile(name="cluster.toml", text=_toml(decisions.resolved.cluster))
    yield PlanFile(name="launcher.toml", text=_toml(decisions.resolved.launcher))
    for lock in (pin.lock for pin in decisions.pins.distinct):
        if lock is not None:
            yield PlanFile(name=f"locks/{lock.name}.lock", text=_toml(lock))


def _toml(model: Model, *, without: Collection[str] = ()) -> str:
    """The model with its defaults, but no empty tables. without: names of its tables that are left out."""
    table = model.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=set(without))
    return tomli_w.dumps({key: value for key, value in table.items() if value != {}})


def _files_of(decisions: Decisions, placed: RolePlacement) -> tuple[PlanFile, ...]:
    """A role's own scripts."""
    prefix = f"{placed.folder}/".lstrip("/")
    return (
        PlanFile(name=f"{prefix}worker.sh", text=rank_files.worker(decisions, placed), mode=0o755),
        PlanFile(name=f"{prefix}program.sh", text=rank_files.program(decisions, placed)),
        PlanFile(name=f"{prefix}image-env.sh", text=rank_files.image_env(decisions, placed)),
    )


def copies(decisions: Decisions) -> tuple[tuple[Path, str], ...]:
    """The launcher's programs, and the library next to them, to be copied at submit."""
    if not decisions.job.is_launchers and not decisions.extra.start:
        return ()
    folder = decisions.resolved.launcher_dir
    return ((folder, "code"), (folder.parent / "lib", "code/lib"))


def folders(decisions: Decisions) -> tuple[str, ...]:
    """The run's own folders, and those that mounts of the run folder and the batch script's output files need."""
    run_dir, paths = decisions.site.run_dir, decisions.paths
    own = ("logs", "monitor", "checkpoints", "state", *(placed.logs for placed in decisions.roles))
    written = [
        slurm_filename_pattern.folder(p, job_name=decisions.job.name, user=decisions.site.user)
        for p in (paths.output, paths.error)
        if p
    ]
    needed = [*(Path(m.source) for m in paths.mounts), *written]
    inside = [str(p.relative_to(run_dir)) for p in needed if p.is_relative_to(run_dir) and p != run_dir]
    return tuple(dict.fromkeys((*own, *inside)))
