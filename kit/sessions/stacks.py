"""`kit stacks`: the present stacks of a running job's ranks, from one Slurm step that does not stop them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kit.errors import RunError
from kit.hosts import clusters
from kit.hosts.status import Status
from kit.record import own_run
from kit.record.run_facts import events
from kit.schema.run_paths import RunPaths

# evidence.sh ends after 20 s; a step may need some more time to start.
_TIMEOUT_S = 90


def gather(status: Status, *, rank: int | None) -> dict[str, str]:
    """Gather the evidence of all ranks or of one rank now. File name (`rank-5.txt`) -> text; a node without rank files adds one.

    RunError if the run is another user's, is not running, or has no such rank; ToolError if Slurm starts no step.
    """
    run_dir = status.run_dir
    # The step runs a program of the run's folder.
    own_run.require(run_dir, to="look at its ranks")
    if status.state != "RUNNING":
        raise RunError(f"run {run_dir.name} is {status.state}: only the ranks of a running job have stacks")
    attempts = [str(e["nodes"]) for e in events(run_dir) if e["event"] == "attempt" and e.get("nodes")]
    if not attempts:
        raise RunError(f"run {run_dir.name} has started no rank yet", hint=f"kit logs {run_dir.name} --follow")
    nodes = attempts[-1].split(",")
    started = [one["job_id"] for one in events(run_dir) if one["event"] == "start"]
    number = started[-1] if started else status.job_id
    files = clusters.host_of_run(run_dir).gather_texts(
        run_dir,
        lambda there, folder: _step(number, nodes, RunPaths(there).bin, folder, rank),
        timeout_s=_TIMEOUT_S,
    )
    if rank is not None and not files:
        raise RunError(f"run {run_dir.name} has no rank {rank} that runs", hint=f"kit top {run_dir.name}")
    return {name: files[name].decode(errors="replace") for name in sorted(files, key=lambda name: _order(Path(name)))}


def _step(number: object, nodes: Sequence[str], programs: Path, folder: Path, rank: int | None) -> list[str]:
    """A step with a task on each node that writes into `folder`."""
    size = [f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", f"--nodelist={','.join(nodes)}", "--ntasks-per-node=1"]
    argv = ["srun", f"--jobid={number}", "--job-name=kit-stacks", "--overlap", "--mem=0", *size]
    argv += ["--cpus-per-task=1", "--mpi=none", f"{programs}/evidence.sh", str(folder)]
    return [*argv, *([str(rank)] if rank is not None else [])]


def _order(path: Path) -> tuple[str, int, str]:
    """Sort key: roles and ranks by their numbers, then nodes."""
    kind, _, name = path.stem.partition("-")
    return ("~" if kind == "node" else str(path.parent)), int(name) if name.isdecimal() else 0, name
