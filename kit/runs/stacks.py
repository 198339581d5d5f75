"""`kit stacks`: what the ranks of a running job do now, by one Slurm step that stops nothing."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from kit import shell, untrusted_files
from kit.errors import RunError
from kit.runs.run_facts import events
from kit.runs.status import Status
from kit.spec.run_paths import RunPaths

# evidence.sh ends after 20 s; a step may take some more to start.
_TIMEOUT_S = 90
_MOST_BYTES = 1 << 20


def gather(status: Status, *, rank: int | None, env: Mapping[str, str]) -> dict[str, str]:
    """The evidence of each rank now, of one rank alone, and without one of each node, by file name (`rank-5.txt`).

    RunError where the run is not running, or has no such rank; ToolError where Slurm starts no step.
    """
    run_dir = status.run_dir
    if status.state != "RUNNING":
        raise RunError(f"run {run_dir.name} is {status.state}: only the ranks of a running job have stacks")
    attempts = [str(e["nodes"]) for e in events(run_dir) if e["event"] == "attempt" and e.get("nodes")]
    if not attempts:
        raise RunError(f"run {run_dir.name} has started no rank yet", hint=f"kit logs {run_dir.name} --follow")
    nodes = attempts[-1].split(",")
    started = [one["job_id"] for one in events(run_dir) if one["event"] == "start"]
    folder = Path(tempfile.mkdtemp(prefix="stacks-", dir=RunPaths(run_dir).state))
    try:
        argv = [
            "srun",
            f"--jobid={started[-1] if started else status.job_id}",
            "--job-name=kit-stacks",
            "--overlap",
            "--mem=0",
        ]
        argv += [
            f"--nodes={len(nodes)}",
            f"--ntasks={len(nodes)}",
            f"--nodelist={','.join(nodes)}",
            "--ntasks-per-node=1",
        ]
        argv += ["--cpus-per-task=1", "--mpi=none", f"{RunPaths(run_dir).bin}/evidence.sh", str(folder)]
        shell.run([*argv, *([str(rank)] if rank is not None else [])], env=env, timeout=_TIMEOUT_S)
        found = {
            path.relative_to(folder).as_posix(): untrusted_files.read_bytes(path, most=_MOST_BYTES).decode(
                errors="replace"
            )
            for path in sorted(folder.glob("**/*.txt"), key=_order)
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if rank is not None and not found:
        raise RunError(f"run {run_dir.name} has no rank {rank} that runs", hint=f"kit top {run_dir.name}")
    return found


def _order(path: Path) -> tuple[str, int, str]:
    """Roles and ranks by their numbers, nodes behind them."""
    kind, _, name = path.stem.partition("-")
    return ("~" if kind == "node" else str(path.parent)), int(name) if name.isdecimal() else 0, name
