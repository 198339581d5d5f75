"""A project on the test cluster: submits through the command line, as a user would, and looks at what is left afterwards."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from kit import shell
from kit.shell import Completed
from kit.slurm.embedded import Cluster

# Longest wait for one short job on a slow machine.
TIMEOUT_S = 240


@dataclass(frozen=True)
class Run:
    """A run that has ended: its folder, and what `kit submit --wait` said."""

    folder: Path
    done: Completed

    def log(self, name: str) -> str:
        path = self.folder / "logs" / f"{name}.log"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def result(self, name: str) -> object:
        """A JSON file that the job's program wrote into the run folder."""
        return json.loads((self.folder / name).read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Lab:
    """`kit` on a cluster of its own."""

    project: Path
    cluster: Cluster
    env: dict[str, str]

    def kit(self, *args: str, check: bool = True, env: dict[str, str] | None = None) -> Completed:
        return shell.run(
            [sys.executable, "-m", "kit", *args],
            cwd=self.project,
            env={**os.environ, **self.env, **(env or {})},
            check=check,
            timeout=TIMEOUT_S,
        )

    def write(self, job: str, program: str = "") -> None:
        (self.project / "job.toml").write_text(f'name = "test"\nlauncher = "ddp"\n{job}', encoding="utf-8")
        if program:
            (self.project / "program.py").write_text(program, encoding="utf-8")

    def run(self, *options: str, env: dict[str, str] | None = None) -> Run:
        """Submit job.toml and wait for the end."""
        done = self.kit("submit", "--cluster", self.cluster.name, "--wait", *options, check=False, env=env)
        assert done.stdout, done.stderr
        return Run(Path(done.stdout.splitlines()[0]), done)

    def submit(self, *options: str) -> Path:
        """Submit job.toml and return at once."""
        return Path(self.kit("submit", "--cluster", self.cluster.name, *options).stdout.splitlines()[0])

    def leftovers(self, run: Path) -> list[str]:
        """Processes of a run and mounts of containers that are still there on any node; empty is what a test wants."""
        found = [f"process {pid}: {line}" for pid, line in _processes_of(run)]
        for node in self.cluster.nodes:
            prefix = self.cluster.node_exec_argv(node.name) if self.cluster.isolated else []
            mounts = shell.run([*prefix, "cat", "/proc/self/mounts"]).stdout.splitlines()
            found += [f"{node.name}: {m}" for m in mounts if "squashfs" in m or "pyxis_" in m or str(run) in m]
        return found


def _processes_of(run: Path) -> list[tuple[int, str]]:
    """Live processes whose command line or environment names the run folder. Zombies are the machine's init's to reap."""
    found = []
    for proc in Path("/proc").iterdir():
        if not proc.name.isdigit() or int(proc.name) == os.getpid():
            continue
        try:
            text = (proc / "cmdline").read_bytes() + (proc / "environ").read_bytes()
            state = (proc / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z" and run.name.encode() in text:
            found.append(
                (int(proc.name), (proc / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            )
    return found
