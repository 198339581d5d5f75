"""What the ranks of a role run: worker.sh maps Slurm's variables to ranks, program.sh is the program with its environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kit.config import Resolved
from kit.errors import ConfigError, Fault
from kit.frameworks import Extra
from kit.planning.placement import Placed
from kit.render import render
from kit.spec.job import Job
from kit.spec.paths import CONTAINER_RUN, is_launchers
from kit.spec.roles import filled

# Of a debugged job: a cluster's NCCL_DEBUG = "WARN" is for quiet runs. lib/debug.sh says the rest.
_DEBUGGED = {"NCCL_DEBUG": "INFO"}


@dataclass(frozen=True, kw_only=True)
class RankScripts:
    """The scripts of one plan's roles. run, workspace, cache: folders as the ranks see them. job: with its choices filled in."""

    resolved: Resolved
    job: Job
    extra: Extra
    run: str
    workspace: str
    cache: str

    @property
    def workdir(self) -> str:
        """Where programs start."""
        return self.job.workdir or self.workspace

    def folder(self, placed: Placed) -> str:
        """Where a role's scripts are."""
        return f"{self.run}/{placed.folder}".rstrip("/")

    def worker(self, placed: Placed) -> str:
        """worker.sh."""
        return render(
            "worker.sh",
            {
                "folder": placed.folder,
                "shape": placed.shape,
                "rendezvous": self.job.rendezvous,
                "nodes": placed.nodes,
                "ranks_per_node": placed.ranks_per_node,
                "cpus_per_rank": placed.cpus_per_rank,
                "python": self.job.python,
                "workdir": self.workdir,
                "cache_dir": self.cache,
                "seed": self.job.seed,
            },
        )

    def program(self, placed: Placed) -> str:
        """program.sh. ConfigError when nobody says what to run."""
        role = placed.role
        if role.command is not None:
            known = {"{run}": self.run, "{workspace}": self.workspace}
            words = [filled(word, known) for word in role.command]
        elif role.script is not None:
            words = [self.job.python, self._script(role.script)]
        else:
            return self._text([*self._own(), *role.args], role.env, rank_args=self.job.rank_args)
        return self._text([*words, *role.args], role.env)

    def all_reduce(self) -> str:
        """The preflight's collective, in the place of the program: same ranks, same environment, same container."""
        return self._text([self.job.python, f"{self.run}/lib/all_reduce.py"], {})

    def _own(self) -> list[str]:
        """The job's program and its arguments."""
        job, launcher = self.job, self.resolved.launcher
        if job.script is not None and is_launchers(job.script):
            script = job.script.replace(CONTAINER_RUN, self.run, 1)
        elif job.script is not None:
            script = self._script(job.script)
        elif launcher.script is not None:
            script = f"{self.run}/code/{launcher.script}"
        else:
            hint = f"launcher {job.launcher!r} brings none of its own"
            raise ConfigError.of(
                Fault(file=self.resolved.job_file, key="script", got="nothing", allowed="a program", hint=hint)
            )
        own = [filled(word, {"{run}": self.run}) for word in self.extra.args]
        return [job.python, script, *own, *job.args]

    def _script(self, script: str) -> str:
        return script if script.startswith("/") else f"{self.workspace}/{script}"

    def _text(self, program: list[str], own: Mapping[str, str], *, rank_args: Mapping[str, str] | None = None) -> str:
        job = self.job
        network = {**self.resolved.cluster.network, **(_DEBUGGED if job.debug else {})}
        env = {**network, **job.checkpoint.env(), **job.profile.env(), **job.env, **own}
        words = [word for pair in (rank_args or {}).items() for word in pair]
        variables = {"program": program, "program_env": [f"{n}={v}" for n, v in env.items()], "rank_args": words}
        return render("program.sh", variables)
