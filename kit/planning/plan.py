"""plan(): job + cluster + image lock in, files and argv out. Pure: no clock, no environment, no disk beyond the kit's templates.

`kit render` prints a plan; `kit submit` writes the same plan and runs its argv, so a dry run cannot drift from the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from kit import frameworks, runtimes
from kit.allocation import Layout, lay_out
from kit.config import Resolved
from kit.errors import ConfigError, Fault
from kit.frameworks import reference
from kit.planning.batch_file import batch_script
from kit.planning.demand import sized
from kit.planning.images import Pin, check_packages, pin
from kit.planning.paths import Places
from kit.planning.placement import Placed, place
from kit.planning.rank_files import RankScripts
from kit.planning.sbatch import goes_back, salloc_options, sbatch_options
from kit.planning.site import Site
from kit.planning.steps import (
    WAIT_S,
    container_step,
    helper_step,
    monitor_step,
    preflight_step,
    role_step,
    shell_step,
    signal_step,
    stage_step,
)
from kit.render import lib_names, plain, render
from kit.runtimes import Container
from kit.spec import log_pattern
from kit.spec.job import Job
from kit.spec.paths import CONTAINER_CACHE, CONTAINER_RUN, CONTAINER_WORKSPACE, RunPaths, is_launchers
from kit.spec.roles import filled

if TYPE_CHECKING:
    from kit.spec.image import ImageLock

# Below Linux's ephemeral ports (32768 on); nodes.sh takes 10,000 ports from here, by job id.
_PORT_BASE = 20_000
AVOID_DIR = ".avoid"
_INTERFACE_ENV = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
# Enroot starts a login shell, whose /etc/profile resets PATH, and drops these locale names (field-notes 2): the worker sets the
# image's own values again.
_LOST_ENV = ("PATH", "LANG", "LC_ALL")


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """A file of the run folder: its name there, its text, its mode bits."""

    name: str
    text: str
    mode: int = 0o644


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that a run will do. `argv` submits it.

    image: as the ranks' node sees it. stored: the .sqsh in the store, empty for a reference; another path when it is staged.
    pins: all images, that of the job first; roles may have others.
    shell_argv: a shell in the job's container, as a step of an allocation; `salloc_argv` makes one.
    copies: folders to copy into the run folder, (source, name there). folders: those to make there.
    """

    run_id: str
    run_dir: Path
    job: Job
    cluster: str
    runtime: str
    image: str
    stored: str
    image_digest: str
    layout: Layout
    roles: tuple[Placed, ...]
    pins: tuple[Pin, ...]
    files: tuple[PlanFile, ...]
    copies: tuple[tuple[Path, str], ...]
    folders: tuple[str, ...]
    argv: tuple[str, ...]
    salloc_argv: tuple[str, ...]
    shell_argv: tuple[str, ...]

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

    Raises ConfigError when the job does not fit the cluster or a path cannot be carried by the runtime.
    """
    runtime = choose_runtime(resolved, site)
    making = _Making(resolved, site, runtime, {**(role_locks or {}), resolved.job.image_name: lock})
    return Plan(
        run_id=site.run_id,
        run_dir=site.run_dir,
        job=making.job,
        cluster=resolved.cluster_name,
        runtime=runtime,
        image=making.pin.image,
        stored=making.pin.stored,
        image_digest=making.pin.digest,
        layout=making.layout,
        roles=making.roles,
        pins=making.distinct_pins(),
        files=making.files(),
        copies=making.copies(),
        folders=making.folders(),
        argv=("sbatch", "--parsable", str(making.paths.batch)),
        salloc_argv=("salloc", *salloc_options(making.job, resolved.cluster.node, making.layout, avoid=site.avoid)),
        shell_argv=making.shell(),
    )


def choose_runtime(resolved: Resolved, site: Site) -> str:
    """The runtime by name: job over cluster; 'auto' is pyxis where Slurm has it, else bubblewrap."""
    if not site.containers:
        return "bare"
    for asked in (resolved.job.container.runtime, resolved.cluster.container.runtime):
        if asked != "auto":
            return asked
    return "pyxis" if site.pyxis else "bubblewrap"


class _Making:
    """One plan in the making: the choices that all its files share."""

    def __init__(
        self, resolved: Resolved, site: Site, runtime: str, locks: Mapping[str | None, ImageLock | None]
    ) -> None:
        resolved = sized(resolved)
        self.resolved, self.site, self.runtime = resolved, site, runtime
        self.contained = runtimes.get(runtime).containerized
        self.places = Places(resolved, site)
        self.paths = RunPaths(site.run_dir)
        self.job = _filled_in(resolved, site, runtime)
        layout = lay_out(resolved)
        _check_rendezvous(self.job, resolved.job_file)
        if is_launchers(self.job.script):
            reference.check(self.job, resolved.launcher, layout, file=resolved.job_file)
        self.extra = frameworks.prepare(resolved.launcher, self.job, layout, file=resolved.job_file)
        named = {**self.extra.roles, **{n: r for n, r in self.job.roles.items() if n not in self.extra.roles}}
        self.roles = place(resolved, layout, named)
        _check_rank_args(self.job, self.roles, resolved.job_file)
        # Services are there for the ranks; they are none of them.
        ranks = sum(r.ranks for r in self.roles if r.role.policy != "service")
        self.layout = replace(layout, ranks_of_roles=ranks) if named else layout
        # A lost node ends a plain job without spares: nothing could go on.
        self.outlives = bool(self.job.retry.spares) or any(r.role.policy == "replica" for r in self.roles)
        self.pins = self._pins(locks)
        self.pin = self.pins[None]
        self.mounts = self.places.mounts()
        self.output, self.error = self.places.log("output") or str(self.paths.batch_log), self.places.log("error")
        self.ranks = RankScripts(
            resolved=resolved,
            job=self.job,
            extra=self.extra,
            run=CONTAINER_RUN if self.contained else str(site.run_dir),
            workspace=CONTAINER_WORKSPACE if self.contained else str(resolved.job_dir),
            cache=CONTAINER_CACHE if self.contained else self.places.cache,
        )

    def files(self) -> tuple[PlanFile, ...]:
        setup = (*self.resolved.cluster.setup, *self.job.setup)
        return (
            PlanFile(name="batch.sh", text=self._batch(), mode=0o755),
            PlanFile(name="rank.sh", text=plain("rank.sh"), mode=0o755),
            PlanFile(name="all-reduce.sh", text=self.ranks.all_reduce()),
            PlanFile(name="setup.sh", text="".join(f"{line}\n" for line in setup)),
            *(file for placed in self.roles if placed.scripts == placed.name for file in self._files_of(placed)),
            *(PlanFile(name=n, text=filled(t, {"{run}": self.ranks.run})) for n, t in self.extra.files.items()),
            PlanFile(name="job.toml", text=tomli_w.dumps(self.job.model_dump(mode="json", exclude_none=True))),
            *(PlanFile(name=f"lib/{name}", text=plain(f"lib/{name}"), mode=0o755) for name in lib_names()),
        )

    def _files_of(self, placed: Placed) -> tuple[PlanFile, ...]:
        """A role's own scripts."""
        prefix = f"{placed.folder}/".lstrip("/")
        image_env = render("image-env.sh", {"image_env": self._image_env(placed)})
        return (
            PlanFile(name=f"{prefix}worker.sh", text=self.ranks.worker(placed), mode=0o755),
            PlanFile(name=f"{prefix}program.sh", text=self.ranks.program(placed)),
            PlanFile(name=f"{prefix}image-env.sh", text=image_env),
        )

    def copies(self) -> tuple[tuple[Path, str], ...]:
        """The launcher's programs and the library beside them, as they are at submit."""
        if not is_launchers(self.job.script):
            return ()
        folder = self.resolved.launcher_dir
        return ((folder, "code"), (folder.parent / "lib", "code/lib"))

    def folders(self) -> tuple[str, ...]:
        """The run's own, and those that mounts of the run folder and files of the batch script's output need."""
        own = ("logs", "monitor", "checkpoints", "state", *(placed.logs for placed in self.roles))
        mounted = [Path(m.source) for m in self.mounts if Path(m.source).is_relative_to(self.site.run_dir)]
        written = [
            log_pattern.folder(p, job_name=self.job.name, user=self.site.user) for p in (self.output, self.error) if p
        ]
        written = [p for p in written if p.is_relative_to(self.site.run_dir)]
        names = [str(m.relative_to(self.site.run_dir)) for m in (*mounted, *written) if m != self.site.run_dir]
        return tuple(dict.fromkeys((*own, *names)))

    def _pins(self, locks: Mapping[str | None, ImageLock | None]) -> dict[str | None, Pin]:
        """Image name -> pin; that of the job goes by None as well."""
        if not self.contained:
            return {None: Pin()}
        stage = self.places.stage if self.job.staged else ""
        own = pin(
            self.resolved,
            self.job.image_name,
            locks[self.job.image_name],
            store=self.places.store,
            stage=stage,
            key="image",
        )
        if own.lock:
            check_packages(self.resolved, own.lock)
        pins: dict[str | None, Pin] = {None: own}
        for placed in self.roles:
            name = placed.role.image
            if name is not None:
                key = f"roles.{placed.name}.image"
                pins[name] = pin(self.resolved, name, locks.get(name), store=self.places.store, stage="", key=key)
        return pins

    def distinct_pins(self) -> tuple[Pin, ...]:
        """Each image once, that of the job first; none without containers."""
        return tuple({p.image: p for p in self.pins.values()}.values()) if self.contained else ()

    def _pin_of(self, placed: Placed) -> Pin:
        return self.pins[placed.role.image if self.contained else None]

    def _main(self) -> Placed:
        """The role that a shell or a probe stands for."""
        return next(r for r in self.roles if r.role.policy != "service")

    def _batch(self) -> str:
        layout = self.layout
        options = sbatch_options(
            self.job,
            self.resolved.cluster.node,
            layout,
            output=self.output,
            error=self.error,
            outlives=self.outlives,
            avoid=self.site.avoid,
        )
        explained = [line.rstrip() for line in (*layout.explained, *self.extra.explained)]
        variables = {"sbatch": options, "explained": explained, **self._settings(), **self._steps()}
        return batch_script(self.resolved, self.site, layout, variables)

    def _settings(self) -> dict[str, Any]:
        """What the batch script goes by."""
        job, layout = self.job, self.layout
        return {
            "run_dir": self.site.run_dir,
            "job_name": job.name,
            "images": [word for p in self.distinct_pins() for word in (p.image, p.digest)],
            "runtime": self.runtime,
            "pyxis_unpacks": {None: "", True: "yes", False: "no"}[self.resolved.cluster.container.pyxis_unpacks],
            "nodes": layout.nodes,
            "world_size": layout.world_size,
            "debug": job.debug,
            "heartbeat": job.monitor.heartbeat,
            "lead": job.slurm.lead,
            "port_base": _PORT_BASE,
            "retry_in_allocation": job.retry.in_allocation,
            "retry_requeue": job.retry.requeue,
            "requeue_capped": goes_back(job) and not job.slurm.requeue,
            "retry_codes": job.retry.exit_codes,
            "preflight_timeout": job.preflight.timeout_s,
            "unpack_timeout": job.preflight.unpack_s,
            "preflight_on_failure": job.preflight.on_failure,
            "all_reduce_timeout": job.preflight.all_reduce_s,
            "avoid_dir": f"{self.site.runs_dir}/{AVOID_DIR}",
            "inherit": job.inherit,
            "outlives": self.outlives,
        }

    def _steps(self) -> dict[str, Any]:
        """What it starts."""
        job, paths, nodes = self.job, self.paths, self.layout.nodes
        every = nodes + job.retry.spares
        preflight = self._preflight(every)
        stage = stage_step(
            job.staged, every, paths, lock=self.pin.lock, source=self.pin.stored, folder=self.places.stage
        )
        unpacked = container_step(every, paths, spares=bool(job.retry.spares)) if self.runtime == "pyxis" else []
        return {
            "step_argv": self._step(self._main()),
            "roles": [{"facts": r.facts(), "env": r.env(), "argv": self._step(r)} for r in self.roles],
            "signal_argv": signal_step(nodes, paths),
            "monitor_argv": monitor_step(job.monitor, nodes, paths),
            "preflight_argv": preflight,
            "stage_argv": stage,
            "container_argv": unpacked,
            "probe_argv": self._probe(every) if preflight else [],
        }

    def _preflight(self, nodes: int) -> list[str]:
        env = {**self.resolved.cluster.network, **self.job.env}
        return preflight_step(
            self.job.preflight,
            nodes,
            self.paths,
            images=[(p.stored or p.image, p.lock) for p in self.distinct_pins()],
            cache=self.places.cache,
            mounts=self.mounts if self.contained else (),
            gpus=self.layout.gpus_per_node,
            interfaces=[env[name] for name in _INTERFACE_ENV if env.get(name)],
        )

    def _step(self, placed: Placed) -> list[str]:
        srun = role_step(placed, self.paths, outlives=self.outlives, wait_s=max(WAIT_S, self.job.slurm.lead))
        return self._wrapped(placed, srun, f"{self.ranks.folder(placed)}/worker.sh")

    def shell(self) -> tuple[str, ...]:
        """A shell on one node, beside whatever runs there."""
        main = self._main()
        words = [f"{self.ranks.run}/lib/shell.sh", self.ranks.workdir, *filter(None, [main.folder])]
        return tuple(self._wrapped(main, shell_step(), *words))

    def _probe(self, nodes: int) -> list[str]:
        """A first start of the container on every node, at the price of one task."""
        if not (self.contained and self.job.preflight.container):
            return []
        main = self._main()
        step = helper_step("kit-probe", nodes, f"{self.paths.logs}/preflight.log")
        words = [f"{self.ranks.run}/lib/probe.sh", self.job.python, f"{main.folder}/image-env.sh".lstrip("/")]
        return self._wrapped(main, step, *words)

    def _wrapped(self, placed: Placed, srun: list[str], *command: str) -> list[str]:
        container = Container(
            image=self._pin_of(placed).image,
            mounts=self.mounts,
            workdir=self.ranks.workdir,
            options=self.job.container,
            lib=self.paths.lib,
            home=self.site.home,
        )
        return runtimes.get(self.runtime).wrap(srun, command, container)

    def _image_env(self, placed: Placed) -> list[tuple[str, str]]:
        lock = self._pin_of(placed).lock
        env = lock.config.env if lock else {}
        return [(name, env[name]) for name in _LOST_ENV if name in env]


def _check_rendezvous(job: Job, file: str) -> None:
    if job.rendezvous != "static" and job.shape == "srun":
        got, allowed = repr(job.rendezvous), "nothing with the start shape srun, which has no torchrun"
        raise ConfigError.of(Fault(file=file, key="rendezvous", got=got, allowed=allowed))


def _check_rank_args(job: Job, roles: tuple[Placed, ...], file: str) -> None:
    if job.rank_args and all(r.role.command is not None or r.role.script is not None for r in roles):
        allowed = "nothing: each role says its own program, which finds these in its environment"
        raise ConfigError.of(Fault(file=file, key="rank_args", got=repr(job.rank_args), allowed=allowed))


def _filled_in(resolved: Resolved, site: Site, runtime: str) -> Job:
    """The job with the choices of this plan written into it."""
    job = resolved.job
    return job.model_copy(
        update={
            "seed": site.seed if job.seed is None else job.seed,
            "shape": job.shape or resolved.launcher.shapes[0],
            "container": job.container.model_copy(update={"runtime": runtime}),
        }
    )
