"""A project on the test cluster: submits through the command line, as a user would, and looks at what is left afterwards."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit import shell
from kit.errors import TimedOutError
from kit.shell import Completed
from kit.slurm.client import ACTIVE
from kit.slurm.embedded import EmbeddedCluster
from tests import kit_server

# Longest wait for one short job on a slow machine.
TIMEOUT_S = 240
# How long what a run started may outlive it: Slurm's KillWait on the embedded cluster, and a busy machine's time to reap.
SETTLE_S = 25


@dataclass(frozen=True)
class Run:
    """A run that has ended: its folder, and what `kit submit --wait` said."""

    folder: Path
    done: Completed

    def log(self, name: str) -> str:
        path = self.folder / "logs" / f"{name}.log"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def result(self, name: str) -> Any:
        """A JSON file that the job's program wrote into the run folder."""
        return json.loads((self.folder / name).read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Process:
    """A live process. argv: its command line, cut at the blanks that were NULs."""

    pid: int
    parent: int
    argv: tuple[str, ...]
    environ: bytes

    @property
    def line(self) -> str:
        """The command line in one piece."""
        return " ".join(self.argv)


@dataclass(frozen=True)
class Lab:
    """`kit` on a cluster of its own."""

    project: Path
    cluster: EmbeddedCluster
    env: dict[str, str]
    # Mounts that the nodes had from this machine before the project's first run: an image that somebody else has mounted.
    mounts_before: frozenset[str] = frozenset()

    def kit(self, *args: str, check: bool = True, env: dict[str, str] | None = None) -> Completed:
        return run_kit(args, cwd=self.project, env={**os.environ, **self.env, **(env or {})}, check=check)

    def write(self, job: str, program: str = "", *, launcher: str = "ddp") -> None:
        text = f'name = "test"\nlauncher = "{launcher}"\n{job}'
        (self.project / "job.toml").write_text(text, encoding="utf-8")
        if program:
            (self.project / "program.py").write_text(program, encoding="utf-8")

    def run(self, *options: str, env: dict[str, str] | None = None) -> Run:
        """Submit job.toml and wait for the end."""
        done = self.kit("submit", "--cluster", self.cluster.name, "--wait", *options, check=False, env=env)
        assert done.stdout, done.stderr
        return Run(Path(done.stdout.splitlines()[0]), done)

    def submit(self, *options: str, env: dict[str, str] | None = None) -> Path:
        """Submit job.toml and return at once."""
        return Path(self.kit("submit", "--cluster", self.cluster.name, *options, env=env).stdout.splitlines()[0])

    def status(self, run: Path) -> dict[str, object]:
        """What `kit status --json` says."""
        facts: dict[str, object] = json.loads(self.kit("status", run.name, "--json").stdout)
        return facts

    def slurm(self, *argv: str, check: bool = True) -> str:
        """One of Slurm's own commands."""
        return shell.run(argv, env={**os.environ, **self.cluster.env()}, timeout=60, check=check).stdout

    def job(self, run: Path) -> dict[str, str]:
        """`scontrol show job`, by field."""
        text = self.slurm("scontrol", "--oneliner", "show", "job", str(job_id(run)))
        return dict(re.findall(r"(\S+?)=(\S*)", text))

    def wait_state(self, run: Path, *states: str) -> None:
        """Until `kit status` shows one of these states; fails with the batch log."""
        self.wait(lambda: self.status(run)["state"] in states, run)

    def wait(self, condition: Callable[[], object], run: Path, *, seconds: float = TIMEOUT_S) -> None:
        """Until a condition holds; fails with the batch log."""
        if not came(condition, seconds=seconds):
            log = run / "logs" / "batch.log"
            raise AssertionError(log.read_text() if log.exists() else "no batch log")

    def wait_end(self, run: Path, *, seconds: float = TIMEOUT_S) -> dict[str, str]:
        """Until Slurm is done with the job, for good; what it then says of it."""
        self.wait(lambda: self.job(run)["JobState"] not in ACTIVE, run, seconds=seconds)
        return self.job(run)

    def processes(self, run: Path) -> list[Process]:
        """Live processes of a run: those that name its folder, or that Slurm started for its job. Zombies are init's to reap."""
        number = job_id(run)
        conf = f"SLURM_CONF={self.cluster.slurm_conf}\0".encode()
        found = []
        for one in _all_processes():
            named = run.name.encode() in one.environ or run.name in one.line
            ours = number is not None and conf in one.environ
            titled = one.line.startswith(f"slurmstepd: [{number}.")
            if named or (ours and (titled or f"SLURM_JOB_ID={number}\0".encode() in one.environ)):
                found.append(one)
        return found

    def batch(self, run: Path) -> Process:
        """The batch script's own shell, not a shell that it forked."""
        shells = {p.pid: p for p in self.processes(run) if "slurm_script" in p.line}
        return next(p for p in shells.values() if p.parent not in shells)

    def srun(self, run: Path, step: str = "train") -> Process:
        """The srun of a step, not the helper that it forks."""
        sruns = {p.pid: p for p in self.processes(run) if p.argv[0] == "srun" and f"--job-name={step}" in p.argv}
        return next(p for p in sruns.values() if p.parent not in sruns)

    def leftovers(self, run: Path) -> list[str]:
        """All that is still there of a run, on any node; empty is what a test wants.

        Processes, mounts, containers, loop devices, secrets and temporary files. Call it with no other run on the cluster:
        containers and loop devices do not name their run.
        """
        found = [f"process {p.pid}: {p.line}" for p in self.processes(run)]
        for node in self.cluster.nodes:
            prefix = self.cluster.node_exec_argv(node.name) if self.cluster.isolated else []
            mounts = set(mounts_of(self.cluster, node.name)) - self.mounts_before
            found += [f"{node.name}: {m}" for m in sorted(mounts) if "squashfs" in m or "pyxis_" in m or str(run) in m]
            own = self.cluster.layout.node
            places = [str(own / "run"), str(own / "enroot"), "/dev/shm"]
            kept = ["!", "-path", "*/enroot/cache-*", "!", "-name", "enroot", "!", "-name", "pyxis"]
            files = shell.run([*prefix, "find", *places, "-mindepth", "1", *kept], check=False).stdout.splitlines()
            found += [f"{node.name}: {f}" for f in files if not re.search(r"/(enroot|pyxis)/(data-)?\d+$", f)]
        found += [str(p) for p in Path("/tmp").iterdir() if run.name in p.name or self._is_of_job(p, job_id(run))]
        found += [str(p) for name in (".secrets", "**/*.new", "**/*.partial", "**/.reserve") for p in run.glob(name)]
        return found + _loop_leftovers()

    def _is_of_job(self, path: Path, number: int | None) -> bool:
        """Whether a file has the name that Slurm gives to what a job leaves. Another cluster's job may have that number."""
        if not re.match(rf"slurm-{number}(\D|$)", path.name):
            return False
        try:
            return path.stat().st_mtime >= (self.project / ".git").stat().st_mtime
        except FileNotFoundError:
            return False

    def inside(self, node: str, *argv: str) -> str:
        """A command inside a node's namespaces, as root."""
        return shell.run([*self.cluster.node_exec_argv(node), *argv], timeout=30, check=False).stdout

    def node_processes(self, node: str) -> list[Process]:
        """All processes of a node but its first one."""
        init = self.cluster.node(node).init
        assert init is not None
        space, everywhere = _namespace(init.pid), [*_all_processes()]
        found = {p.pid: p for p in everywhere if p.pid != init.pid and _namespace(p.pid) == space}
        # Those in the PID namespaces of containers are below them.
        while more := {p.pid: p for p in everywhere if p.parent in found and p.pid not in found}:
            found |= more
        return [*found.values()]

    def restart_slurmd(self, node: str) -> None:
        """Bring a node back whose daemon is gone."""
        layout = self.cluster.layout
        env = {
            "PATH": os.environ["PATH"],
            "HOME": "/root",
            "KIT_CLUSTER_FOLDER": str(layout.folder),
            **self.cluster.env(),
        }
        argv = [*self.cluster.node_exec_argv(node), "slurmd", "-D", "-N", node]
        shell.daemon(argv, log=layout.console(node), env=env, cwd=layout.folder)
        self.wait_nodes()

    def wait_nodes(self) -> None:
        """Until every node may be given a job."""
        end = time.monotonic() + TIMEOUT_S
        while {s.rstrip("*") for s in self.slurm("sinfo", "-h", "-N", "-o", "%T").split()} - {
            "idle",
            "mixed",
            "allocated",
        }:
            assert time.monotonic() < end, self.slurm("sinfo", "-N", "-l")
            time.sleep(0.5)

    def settled(self, run: Path, *, seconds: float = SETTLE_S) -> list[str]:
        """What is left of a run once what was on its way out is out. Reports that stay are removed: each test fails for itself."""
        left: list[str] = []

        def nothing() -> bool:
            left[:] = self.leftovers(run)
            return not left

        if not came(nothing, seconds=seconds):
            self.remove_reports()
        return left

    def remove_reports(self) -> None:
        """Reports that killed collectors have left on any node."""
        if self.cluster.isolated:
            for node in self.cluster.nodes:
                argv = [
                    "find",
                    "/dev/shm",
                    "-mindepth",
                    "1",
                    "-name",
                    "kit-*",
                    "-prune",
                    "-exec",
                    "rm",
                    "-r",
                    "{}",
                    "+",
                ]
                shell.run([*self.cluster.node_exec_argv(node.name), *argv], check=False)


def came(condition: Callable[[], object], *, seconds: float = TIMEOUT_S) -> bool:
    """Whether a condition became true within this many seconds.

    After each look, five times its own time is waited, 0.1 s at least and 1.5 s at most: a look that runs a `kit` takes a core for
    that time, and on a busy machine the looks of a few tests would take all of it.
    """
    end = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if condition():
            return True
        now = time.monotonic()
        if now > end:
            return False
        time.sleep(min(max(0.1, 5 * (now - began)), 1.5))


def run_kit(args: Sequence[str], *, cwd: Path, env: Mapping[str, str], check: bool = True) -> Completed:
    """`kit ARGS` in a process of its own (tests/kit_server.py)."""
    argv = [sys.executable, "-m", "kit", *args]
    if not kit_server.forks(env):
        return shell.run(argv, cwd=cwd, env=env, check=check, timeout=TIMEOUT_S)
    said = kit_server.run(list(args), cwd=cwd, env=env, timeout=TIMEOUT_S)
    if said is None:
        raise TimedOutError(f"{argv[0]}: no answer within {TIMEOUT_S} s: {' '.join(argv)}")
    done = Completed(argv=tuple(argv), returncode=said[0], stdout=said[1], stderr=said[2])
    if check and done.returncode != 0:
        raise shell.failed(done)
    return done


def job_id(run: Path) -> int | None:
    """The Slurm job of a run."""
    path = run / "manifest.json"
    return json.loads(path.read_text(encoding="utf-8"))["job_id"] if path.exists() else None


def mounts_of(cluster: EmbeddedCluster, node: str) -> list[str]:
    """The mounts that a node has, as lines of /proc/self/mounts."""
    prefix = cluster.node_exec_argv(node) if cluster.isolated else []
    return shell.run([*prefix, "cat", "/proc/self/mounts"]).stdout.splitlines()


def slurmstepds(lab: Lab, run: Path, step: str) -> list[int]:
    """The slurmstepd processes of a step, one on each node; `batch` is the batch script's."""
    listed = lab.slurm("squeue", "--noheader", "--steps", "--format=%j %i").splitlines()
    ids = {line.split()[0]: line.split()[1] for line in listed}
    named = f"{lab.job(run)['JobId']}.batch" if step == "batch" else ids[step]
    # Not by the run: from Slurm 24.11 on, a slurmstepd has nothing of its job in its environment.
    found = (one for node in lab.cluster.nodes for one in lab.node_processes(node.name))
    return [one.pid for one in found if one.line == f"slurmstepd: [{named}]"]


def _namespace(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def _all_processes() -> Iterator[Process]:
    for proc in Path("/proc").iterdir():
        if not proc.name.isdigit() or int(proc.name) == os.getpid():
            continue
        try:
            argv = (proc / "cmdline").read_bytes().rstrip(b"\0").decode(errors="replace").split("\0")
            environ = (proc / "environ").read_bytes() + b"\0"
            state, parent, *_ = (proc / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if state != "Z":
            yield Process(int(proc.name), int(parent), tuple(argv), environ)


def _loop_leftovers() -> list[str]:
    """Loop devices over an image that no process has mounted: the last umount did not free them."""
    backed = {}
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            if (name := path.read_text().strip()).endswith(".sqsh"):
                backed[path.parts[3]] = name
        except OSError:
            continue
    mounted = set()
    # Loop devices are the machine's; in a root of another suite /proc has the processes of that root alone (tests/in_root.sh).
    seen = Path("/run/machine-proc") if Path("/run/machine-proc").exists() else Path("/proc")
    for info in seen.glob("[0-9]*/mountinfo") if backed else ():
        try:
            mounted |= set(re.findall(r"/dev/(loop\d+) ", info.read_text()))
        except OSError:
            continue
    return [f"loop device {loop} over {name}" for loop, name in backed.items() if loop not in mounted]
