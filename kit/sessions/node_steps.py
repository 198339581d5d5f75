"""Steps of a running job on one of its nodes, started from this machine or over ssh, for `kit port` and similar commands."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.errors import RunError, UsageError
from kit.files import untrusted_files
from kit.hosts import clusters
from kit.hosts.host import Host
from kit.hosts.status import Status
from kit.record import own_run
from kit.record.run_facts import events
from kit.schema.run_paths import RunPaths

_PORTS = range(1, 65536)


@dataclass(frozen=True, kw_only=True)
class JobNode:
    """A node of a running job. number: the job's own number, for srun. run_dir: as the node sees it."""

    name: str
    number: str
    run_dir: Path
    host: Host

    def step(self, options: list[str], command: list[str]) -> list[str]:
        """The argv of a step on the node, with this process's pipes; also over ssh."""
        argv = [
            "srun",
            f"--jobid={self.number}",
            "--overlap",
            "--mem=0",
            "--nodes=1",
            "--ntasks=1",
            "--cpus-per-task=1",
        ]
        argv += [f"--nodelist={self.name}", "--mpi=none", "--unbuffered", *options, *command]
        return self.from_here(argv)

    def from_here(self, argv: list[str]) -> list[str]:
        """The argv, for this machine, of a Slurm command."""
        return self.host.piped(argv)


def find_node(status: Status, name: str | None) -> JobNode:
    """A node of a running run: the first of a role, the one with this name, or the first of all.

    RunError for a run that is another user's or is not running, UsageError for any other name.
    """
    run_dir = status.run_dir
    # Steps run programs and words of the run's folder.
    own_run.require(run_dir, to="start a step in it")
    if status.state != "RUNNING":
        raise RunError(f"run {run_dir.name} is {status.state}: only a running job has nodes to go to")
    host = clusters.host_of_run(run_dir)
    host.fetch(run_dir, accounting_too=False)
    nodes = [str(e["nodes"]).split(",") for e in events(run_dir) if e["event"] == "attempt" and e.get("nodes")]
    if not nodes:
        raise RunError(f"run {run_dir.name} has started no rank yet", hint=f"kit logs {run_dir.name} --follow")
    known = {role: record["nodes"][0] for role, record in roles(run_dir).items() if record.get("nodes")}
    known |= {node: node for node in nodes[-1]}
    chosen = nodes[-1][0] if name is None else known.get(name)
    if chosen is None:
        raise UsageError(
            f"{name}: neither a role nor a node of {run_dir.name}", hint=f"one of {', '.join(sorted(known)[:12])}"
        )
    started = [record["job_id"] for record in events(run_dir) if record["event"] == "start"]
    return JobNode(
        name=chosen,
        number=str(started[-1] if started else status.job_id),
        run_dir=host.path_there(run_dir),
        host=host,
    )


def roles(run_dir: Path) -> dict[str, dict[str, Any]]:
    """Nodes, addresses and ports of the roles, as the job recorded them; empty for a plain job."""
    try:
        found = json.loads(untrusted_files.read_bytes(RunPaths(run_dir).state / "roles.json"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def port(run_dir: Path, text: str, role: str | None) -> int:
    """A port's number, given as a number or as the role's name for it. UsageError for anything else."""
    if text.isdecimal() and int(text) in _PORTS:
        return int(text)
    named = {name: one.get("ports", {}) for name, one in roles(run_dir).items()}
    found = [ports[text] for name, ports in named.items() if text in ports and role in {None, name}]
    if len(found) == 1:
        return int(found[0])
    known = ", ".join(f"{port}:{name}" for name, ports in named.items() for port in ports)
    raise UsageError(f"{text}: not a port", hint=f"a number from 1 to 65535{f', or {known}' if known else ''}")
