"""`kit stacks`: the present stacks of a running job's ranks, from one Slurm step that does not stop them."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from kit import shell
from kit.errors import RunError
from kit.files import untrusted_files
from kit.hosts import remote_clusters
from kit.hosts.remote_clusters import RemoteCluster
from kit.hosts.status import Status
from kit.record.run_facts import events
from kit.schema.run_paths import RunPaths
from kit.shell import Completed
from kit.ssh import run_folder_mirror as mirrors
from kit.ssh.shell_program import Words

# evidence.sh ends after 20 s; a step may need some more time to start.
_TIMEOUT_S = 90
_MOST_BYTES = 1 << 20


def gather(status: Status, *, rank: int | None, env: Mapping[str, str]) -> dict[str, str]:
    """Gather the evidence of all ranks or of one rank now. File name (`rank-5.txt`) -> text; a node without rank files adds one.

    RunError if the run is not running, or has no such rank; ToolError if Slurm starts no step.
    """
    run_dir = status.run_dir
    if status.state != "RUNNING":
        raise RunError(f"run {run_dir.name} is {status.state}: only the ranks of a running job have stacks")
    attempts = [str(e["nodes"]) for e in events(run_dir) if e["event"] == "attempt" and e.get("nodes")]
    if not attempts:
        raise RunError(f"run {run_dir.name} has started no rank yet", hint=f"kit logs {run_dir.name} --follow")
    nodes = attempts[-1].split(",")
    started = [one["job_id"] for one in events(run_dir) if one["event"] == "start"]
    number = started[-1] if started else status.job_id
    remote = remote_clusters.holding(run_dir)
    if remote:
        return _checked(_over_ssh(remote, status, nodes, number, rank), run_dir, rank)
    folder = Path(tempfile.mkdtemp(prefix="stacks-", dir=RunPaths(run_dir).state))
    try:
        shell.run(_step(number, nodes, RunPaths(run_dir).bin, folder, rank), env=env, timeout=_TIMEOUT_S)
        found = {
            path.relative_to(folder).as_posix(): untrusted_files.read_bytes(path, most=_MOST_BYTES).decode(
                errors="replace"
            )
            for path in sorted(folder.glob("**/*.txt"), key=lambda path: _order(path.relative_to(folder)))
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return _checked(found, run_dir, rank)


def _step(number: object, nodes: Sequence[str], programs: Path, folder: Path, rank: int | None) -> list[str]:
    """A step with a task on each node that writes into `folder`."""
    size = [f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", f"--nodelist={','.join(nodes)}", "--ntasks-per-node=1"]
    argv = ["srun", f"--jobid={number}", "--job-name=kit-stacks", "--overlap", "--mem=0", *size]
    argv += ["--cpus-per-task=1", "--mpi=none", f"{programs}/evidence.sh", str(folder)]
    return [*argv, *([str(rank)] if rank is not None else [])]


def _over_ssh(
    remote: RemoteCluster, status: Status, nodes: Sequence[str], number: object, rank: int | None
) -> dict[str, str]:
    there = Path(remote.mirror.path_there(status.run_dir))
    folder = RunPaths(there).state / f"stacks-{secrets.token_hex(8)}"
    words = Words(_step(number, nodes, RunPaths(there).bin, folder, rank))
    constants = {**mirrors.folders(remote.rules), "FOLDER": str(folder), "ARGV": words}
    reply = remote.connection.ask("stacks", constants, timeout=_TIMEOUT_S)
    if reply.codes["step"] != 0:
        argv = ("srun",)
        raise shell.failed(Completed(argv=argv, returncode=reply.codes["step"], stdout="", stderr=reply.stderr))
    texts = {one.path: one.content[:_MOST_BYTES].decode(errors="replace") for one in reply.files}
    return {name: texts[name] for name in sorted(texts, key=lambda name: _order(Path(name)))}


def _checked(found: dict[str, str], run_dir: Path, rank: int | None) -> dict[str, str]:
    if rank is not None and not found:
        raise RunError(f"run {run_dir.name} has no rank {rank} that runs", hint=f"kit top {run_dir.name}")
    return found


def _order(path: Path) -> tuple[str, int, str]:
    """Sort key: roles and ranks by their numbers, then nodes."""
    kind, _, name = path.stem.partition("-")
    return ("~" if kind == "node" else str(path.parent)), int(name) if name.isdecimal() else 0, name
