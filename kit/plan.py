"""plan(): job + cluster + image lock in, files and argv out. Pure: no clock, no environment, no disk beyond the kit's templates.

`kit render` prints a plan; `kit submit` writes the same plan and runs its argv, so a dry run cannot drift from the run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tomli_w

from kit import frameworks, runtimes
from kit.config import Resolved
from kit.errors import ConfigError, Fault
from kit.frameworks import fits
from kit.layout import Layout, lay_out
from kit.places import Places, Site
from kit.render import lib_names, plain, render
from kit.runtimes import Container
from kit.scripts import (
    STEP,
    WAIT_S,
    container_step,
    goes_back,
    helper_step,
    monitor_step,
    preflight_step,
    salloc_options,
    sbatch_options,
    shell_step,
    signal_step,
    stage_step,
    training_step,
)
from kit.spec import patterns
from kit.spec.job import Job
from kit.spec.paths import CONTAINER_CACHE, CONTAINER_RUN, CONTAINER_WORKSPACE, RunPaths
from kit.template import batch_script

if TYPE_CHECKING:
    from kit.spec.image import ImageLock

__all__ = ["Plan", "PlanFile", "Site", "plan"]

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
    files: tuple[PlanFile, ...]
    copies: tuple[tuple[Path, str], ...]
    folders: tuple[str, ...]
    argv: tuple[str, ...]
    salloc_argv: tuple[str, ...]
    shell_argv: tuple[str, ...]

    def text_of(self, name: str) -> str:
        """The text of one of the plan's files."""
        return next(f.text for f in self.files if f.name == name)


def plan(resolved: Resolved, lock: ImageLock | None, site: Site) -> Plan:
    """The plan of a job. lock: of the job's image; None without a container, or for a reference with its own digest.

    Raises ConfigError when the job does not fit the cluster or a path cannot be carried by the runtime.
    """
    runtime = choose_runtime(resolved, site)
    making = _Making(resolved, site, runtime, lock)
    return Plan(
        run_id=site.run_id,
        run_dir=site.run_dir,
        job=making.job,
        cluster=resolved.cluster_name,
        runtime=runtime,
        image=making.image,
        stored=making.stored,
        image_digest=making.digest,
        layout=making.layout,
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

    def __init__(self, resolved: Resolved, site: Site, runtime: str, lock: ImageLock | None) -> None:
        self.resolved, self.site, self.runtime = resolved, site, runtime
        self.contained = runtimes.get(runtime).containerized
        self.places = Places(resolved, site)
        self.paths = RunPaths(site.run_dir)
        self.layout = lay_out(resolved)
        self.job = _filled_in(resolved, site, runtime)
        self.stored = ""
        self.image, self.digest = self._image(lock) if self.contained else ("", "")
        self.lock = lock if self.contained and self.image.startswith("/") else None
        if self.lock:
            _check_packages(resolved, self.lock)
        _check_rendezvous(self.job, resolved.job_file)
        if _is_launchers(self.job.script):
            fits.check(self.job, resolved.launcher, self.layout, file=resolved.job_file)
        self.extra = frameworks.prepare(resolved.launcher.framework, self.job, self.layout, file=resolved.job_file)
        self.mounts = self.places.mounts()
        self.output, self.error = self.places.log("output") or str(self.paths.batch_log), self.places.log("error")
        # Where the run folder and the job's folder are, as the ranks see them.
        self.run_inside = CONTAINER_RUN if self.contained else str(site.run_dir)
        self.workspace = CONTAINER_WORKSPACE if self.contained else str(resolved.job_dir)

    def files(self) -> tuple[PlanFile, ...]:
        setup = (*self.resolved.cluster.setup, *self.job.setup)
        return (
            PlanFile(name="batch.sh", text=self._batch(), mode=0o755),
            PlanFile(name="worker.sh", text=self._worker(), mode=0o755),
            PlanFile(name="rank.sh", text=plain("rank.sh"), mode=0o755),
            PlanFile(name="program.sh", text=self._program()),
            PlanFile(name="all-reduce.sh", text=self._all_reduce()),
            PlanFile(name="image-env.sh", text=render("image-env.sh", {"image_env": self._image_env()})),
            PlanFile(name="setup.sh", text="".join(f"{line}\n" for line in setup)),
            *(PlanFile(name=name, text=text) for name, text in self.extra.files.items()),
            PlanFile(name="job.toml", text=tomli_w.dumps(self.job.model_dump(mode="json", exclude_none=True))),
            *(PlanFile(name=f"lib/{name}", text=plain(f"lib/{name}"), mode=0o755) for name in lib_names()),
        )

    def copies(self) -> tuple[tuple[Path, str], ...]:
        """The launcher's programs and the library beside them, as they are at submit."""
        if not _is_launchers(self.job.script):
            return ()
        folder = self.resolved.launcher_dir
        return ((folder, "code"), (folder.parent / "lib", "code/lib"))

    def folders(self) -> tuple[str, ...]:
        """The run's own, and those that mounts of the run folder and files of the batch script's output need."""
        own = ("logs", "monitor", "checkpoints", "state")
        mounted = [Path(m.source) for m in self.mounts if Path(m.source).is_relative_to(self.site.run_dir)]
        written = [
            patterns.folder(p, job_name=self.job.name, user=self.site.user) for p in (self.output, self.error) if p
        ]
        written = [p for p in written if p.is_relative_to(self.site.run_dir)]
        names = [str(m.relative_to(self.site.run_dir)) for m in (*mounted, *written) if m != self.site.run_dir]
        return tuple(dict.fromkeys((*own, *names)))

    def _image(self, lock: ImageLock | None) -> tuple[str, str]:
        """The image as the runtime takes it, and its digest."""
        name = self.job.image_name
        if name is None:
            hint = 'such as image = "train-cpu", or use --no-container'
            raise ConfigError.of(
                Fault(file=self.resolved.job_file, key="image", got="nothing", allowed="an image to run in", hint=hint)
            )
        if name.startswith("docker://"):
            return name, name.rpartition("@")[2]
        if lock is None:
            raise ConfigError.of(
                Fault(
                    file=self.resolved.job_file,
                    key="image",
                    got=f"{name!r}, which has no image.lock",
                    allowed="an image that is locked by digest",
                    hint=f"run 'kit build-image {name}'",
                )
            )
        self.stored = f"{self.places.store}/sha256/{lock.sha256}.sqsh"
        image = f"{self.places.stage}/{lock.sha256}.sqsh" if self.job.staged else self.stored
        return image, f"sha256:{lock.sha256}"

    def _batch(self) -> str:
        job, layout, paths = self.job, self.layout, self.paths
        nodes = layout.nodes + job.retry.spares
        step = training_step(layout, paths, spares=bool(job.retry.spares), wait_s=max(WAIT_S, job.slurm.lead))
        env = {**self.resolved.cluster.network, **job.env}
        preflight = preflight_step(
            job.preflight,
            nodes,
            paths,
            lock=self.lock,
            image=self.stored or self.image,
            cache=self.places.cache,
            mounts=self.mounts if self.contained else (),
            gpus=layout.gpus_per_node,
            interfaces=[env[name] for name in _INTERFACE_ENV if env.get(name)],
        )
        return batch_script(
            self.resolved,
            self.site,
            layout,
            {
                "sbatch": sbatch_options(
                    job,
                    self.resolved.cluster.node,
                    layout,
                    output=self.output,
                    error=self.error,
                    avoid=self.site.avoid,
                ),
                "explained": layout.explained,
                "run_dir": self.site.run_dir,
                "job_name": job.name,
                "image": self.image,
                "image_digest": self.digest,
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
                "step": STEP,
                "step_argv": self._wrapped(step, f"{self.run_inside}/worker.sh"),
                "signal_argv": signal_step(layout.nodes, paths),
                "monitor_argv": monitor_step(job.monitor, layout.nodes, paths),
                "preflight_argv": preflight,
                "stage_argv": stage_step(
                    job.staged, nodes, paths, lock=self.lock, source=self.stored, folder=self.places.stage
                ),
                "container_argv": container_step(nodes, paths, spares=bool(job.retry.spares))
                if self.runtime == "pyxis"
                else [],
                "probe_argv": self._probe(nodes) if preflight else [],
            },
        )

    def shell(self) -> tuple[str, ...]:
        """A shell on one node, beside whatever runs there."""
        return tuple(self._wrapped(shell_step(), f"{self.run_inside}/lib/shell.sh", self.job.workdir or self.workspace))

    def _probe(self, nodes: int) -> list[str]:
        """A first start of the container on every node, at the price of one task."""
        if not (self.contained and self.job.preflight.container):
            return []
        step = helper_step("kit-probe", nodes, f"{self.paths.logs}/preflight.log")
        return self._wrapped(step, f"{self.run_inside}/lib/probe.sh", self.job.python)

    def _wrapped(self, srun: list[str], *command: str) -> list[str]:
        container = Container(
            image=self.image,
            mounts=self.mounts,
            workdir=self.job.workdir or self.workspace,
            options=self.job.container,
            lib=self.paths.lib,
            home=self.site.home,
        )
        return runtimes.get(self.runtime).wrap(srun, command, container)

    def _image_env(self) -> list[tuple[str, str]]:
        env = self.lock.config.env if self.lock else {}
        return [(name, env[name]) for name in _LOST_ENV if name in env]

    def _worker(self) -> str:
        return render(
            "worker.sh",
            {
                "shape": self.job.shape,
                "rendezvous": self.job.rendezvous,
                "nodes": self.layout.nodes,
                "ranks_per_node": self.layout.ranks_per_node,
                "cpus_per_rank": self.layout.cpus_per_rank,
                "python": self.job.python,
                "workdir": self.job.workdir or self.workspace,
                "cache_dir": CONTAINER_CACHE if self.contained else self.places.cache,
                "seed": self.job.seed,
            },
        )

    def _program(self) -> str:
        job, launcher = self.job, self.resolved.launcher
        if job.script is not None and _is_launchers(job.script):
            script = job.script.replace(CONTAINER_RUN, self.run_inside, 1)
        elif job.script is not None:
            script = job.script if job.script.startswith("/") else f"{self.workspace}/{job.script}"
        elif launcher.script is not None:
            script = f"{self.run_inside}/code/{launcher.script}"
        else:
            hint = f"launcher {job.launcher!r} brings none of its own"
            raise ConfigError.of(
                Fault(file=self.resolved.job_file, key="script", got="nothing", allowed="a program", hint=hint)
            )
        own = [word.replace("{run}", self.run_inside) for word in self.extra.args]
        return self._program_text([job.python, script, *own, *job.args])

    def _all_reduce(self) -> str:
        """The preflight's collective, in the place of the program: same ranks, same environment, same container."""
        return self._program_text([self.job.python, f"{self.run_inside}/lib/all_reduce.py"])

    def _program_text(self, program: list[str]) -> str:
        job = self.job
        env = {**self.resolved.cluster.network, **job.checkpoint.env(), **job.profile.env(), **job.env}
        return render("program.sh", {"program": program, "program_env": [f"{n}={v}" for n, v in env.items()]})


def _check_packages(resolved: Resolved, lock: ImageLock) -> None:
    """ConfigError when the image lacks a package that the launcher's programs import: the lock knows, no node is asked."""
    if not _is_launchers(resolved.job.script) or not lock.packages.pip:
        return
    held = {canonical(name) for name in lock.packages.pip}
    lacking = [name for name in resolved.launcher.requires if canonical(name) not in held]
    if lacking:
        raise ConfigError.of(
            Fault(
                file=resolved.job_file,
                key="image",
                got=f"{lock.name!r}, which lacks {', '.join(lacking)}",
                allowed=f"an image with what launcher {resolved.job.launcher!r} requires: {', '.join(resolved.launcher.requires)}",
            )
        )


def _check_rendezvous(job: Job, file: str) -> None:
    if job.rendezvous != "static" and job.shape == "srun":
        got, allowed = repr(job.rendezvous), "nothing with the start shape srun, which has no torchrun"
        raise ConfigError.of(Fault(file=file, key="rendezvous", got=got, allowed=allowed))


def _is_launchers(script: str | None) -> bool:
    """Whether the program is one of the launcher's own: its first, or one named by its place in the run folder."""
    return script is None or script.startswith(f"{CONTAINER_RUN}/code/")


def canonical(name: str) -> str:
    """A package name as PyPI compares them (PEP 503): `Megatron_Core` is `megatron-core`."""
    return re.sub(r"[-_.]+", "-", name).lower()


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
