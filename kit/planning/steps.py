"""Steps of a run, each an srun command line: roles, monitor, preflight, helpers. Lists of words, never strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kit.planning.placement import Placed
from kit.spec.job import ImageChoice
from kit.spec.mount import Mount
from kit.spec.operations import Monitor, Preflight
from kit.spec.paths import RunPaths

if TYPE_CHECKING:
    from kit.spec.image import ImageLock

# Seconds that the other ranks get once one has ended well, before srun ends them (field-notes 29). Never less than the lead: at its
# signal the first rank may be done long before the one that writes the checkpoint.
WAIT_S = 60


def role_step(placed: Placed, paths: RunPaths, *, outlives: bool, wait_s: int = WAIT_S) -> list[str]:
    """srun for the ranks of a role. It gets every figure again: since 22.05 it ignores SLURM_CPUS_PER_TASK (field-notes 21).

    No GPU option stands here: with the job's --gpus-per-node every rank sees all of the job's GPUs on its node and takes the one of
    its local rank. `--gpu-bind=none` would say the same, but Slurm 22.05 then leaves CUDA_VISIBLE_DEVICES out for several tasks a
    node, and without device cgroups two jobs on a node would share GPU 0.
    """
    return [
        "srun",
        f"--job-name={placed.name}",
        f"--nodes={placed.nodes}",
        f"--ntasks={placed.nodes * placed.tasks_per_node}",
        f"--ntasks-per-node={placed.tasks_per_node}",
        f"--cpus-per-task={placed.cpus_per_task}",
        "--mpi=none",
        "--export=ALL",
        "--kill-on-bad-exit=1",
        f"--wait={wait_s}",
        # A step with a lost node may never end for Slurm: the next one has to share with what is left of it.
        *(["--no-kill"] if outlives else []),
        *(["--overlap"] if outlives or placed.shared else []),
        f"--output={paths.root}/{placed.logs}/task-%t.log",
        "--open-mode=append",
    ]


def monitor_step(monitor: Monitor, nodes: int, paths: RunPaths) -> list[str]:
    """The GPU monitor on every node of the ranks; nothing when it is switched off."""
    if not monitor.enabled:
        return []
    command = [f"{paths.lib}/gpu-monitor.sh", str(paths.monitor), monitor.select, monitor.options, str(monitor.delay)]
    command += [",".join(monitor.query)] if monitor.query else []
    return [*helper_step("kit-monitor", nodes, f"{paths.monitor}/monitor-%n.log"), *command]


def signal_step(nodes: int, paths: RunPaths) -> list[str]:
    """Sends a signal, whose name the batch script adds, to the ranks on every node and to nothing else."""
    return [*helper_step("kit-signal", nodes, "/dev/null"), f"{paths.lib}/signal.sh"]


def preflight_step(
    checks: Preflight,
    nodes: int,
    paths: RunPaths,
    *,
    images: Sequence[tuple[str, ImageLock | None]],
    cache: str,
    mounts: Sequence[Mount],
    gpus: int,
    interfaces: Sequence[str],
) -> list[str]:
    """The checks of every node, the spares among them; nothing when they are switched off."""
    if not checks.enabled:
        return []
    options = [
        f"run={paths.root}",
        f"cache={cache}",
        f"free_kb={int(checks.free_disk_gb * 1e6)}",
        f"shm_kb={int(checks.shm_gb * 1e6)}",
        f"nofile={checks.nofile}",
        f"memlock={checks.memlock}",
        f"skew={int(checks.clock_skew_s)}",
        f"gpus={gpus}",
        f"userns={int(bool(images))}",
    ]
    for image, lock in images:
        options += [f"image={image}"] if image.startswith("/") else []
        if lock is not None:
            options.append(f"size={lock.size}")
            options += [f"sha256={lock.sha256}"] if checks.verify_image else []
    options += [f"source={m.source}" for m in mounts if m.source not in {"tmpfs", cache, str(paths.root)}]
    options += [f"interface={name}" for name in interfaces]
    output = f"{paths.logs}/preflight.log"
    return [*helper_step("kit-preflight", nodes, output), f"{paths.lib}/preflight.sh", *options]


def shell_step() -> list[str]:
    """srun for an interactive shell: one task that shares whatever the job has on its node."""
    return ["srun", "--pty", "--overlap", "--mem=0", "--nodes=1", "--ntasks=1", "--mpi=none", "--export=ALL"]


def stage_step(
    choice: ImageChoice | None, nodes: int, paths: RunPaths, *, lock: ImageLock | None, source: str, folder: str
) -> list[str]:
    """A copy of the image on every node's own disk; nothing unless the job asks for it. source: the image in the store."""
    if choice is None or lock is None:
        return []
    command = [f"{paths.lib}/stage.sh", source, lock.sha256, folder, str(int(choice.cap_gb * 1e6))]
    return [*helper_step("kit-stage", nodes, f"{paths.logs}/stage.log"), *command]


def container_step(nodes: int, paths: RunPaths, *, spares: bool) -> list[str]:
    """Removes at the end what Pyxis unpacked; the batch script adds names, and starts it only where Pyxis unpacks."""
    step = helper_step("kit-container", nodes, f"{paths.logs}/container.log")
    return [*step, *(["--no-kill"] if spares else []), f"{paths.lib}/container.sh"]


def helper_step(name: str, nodes: int, output: str) -> list[str]:
    """One task a node beside the training step, without memory or CPUs of its own (field-notes 24)."""
    return [
        "srun",
        f"--job-name={name}",
        "--overlap",
        "--mem=0",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        "--cpus-per-task=1",
        "--mpi=none",
        "--export=ALL",
        f"--output={output}",
        "--open-mode=append",
    ]
