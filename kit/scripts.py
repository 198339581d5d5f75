"""Command lines of a run: the sbatch header, the training step, the monitor and the preflight. Lists of words, never strings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from kit.layout import Layout
from kit.spec.cluster import NodeShape
from kit.spec.job import Job, Monitor
from kit.spec.mount import Mount
from kit.spec.paths import RunPaths

STEP = "train"
# Seconds that the other ranks get once one has ended, before srun ends them (field-notes 29).
_WAIT_S = 60


def sbatch_options(job: Job, node: NodeShape, layout: Layout, paths: RunPaths) -> list[str]:
    """The header, one option a line, in a fixed order."""
    slurm = job.slurm
    valued: Mapping[str, object | None] = {
        "job-name": job.name,
        "account": slurm.account,
        "partition": slurm.partition,
        "qos": slurm.qos,
        "nodes": layout.nodes,
        "ntasks-per-node": layout.tasks_per_node,
        "cpus-per-task": layout.cpus_per_task,
        "mem": layout.memory,
        "time": job.resources.time,
        "constraint": slurm.constraint,
        "exclude": slurm.exclude,
        "nodelist": slurm.nodelist,
        "reservation": slurm.reservation,
        "licenses": slurm.licenses,
        "mail-user": slurm.mail_user,
        "mail-type": slurm.mail_type,
        "output": paths.batch_log,
        "open-mode": "append",
        # `B:` reaches the batch shell, which passes the signal on; without it Slurm would signal every process of the step.
        "signal": f"B:USR1@{slurm.lead}" if slurm.lead and job.resources.time else None,
    }
    options = [f"--{name}={value}" for name, value in valued.items() if value is not None]
    options += _gpu_options(node, layout)
    options += ["--exclusive"] if slurm.exclusive else []
    options += ["--requeue" if slurm.requeue else "--no-requeue"]
    return [*options, *slurm.extra]


def training_step(layout: Layout, paths: RunPaths) -> list[str]:
    """srun for the ranks. It gets every figure again: since 22.05 it ignores SLURM_CPUS_PER_TASK (field-notes 21).

    No GPU option stands here: with the job's --gpus-per-node every rank sees all of the job's GPUs on its node and takes the one of
    its local rank. `--gpu-bind=none` would say the same, but Slurm 22.05 then leaves CUDA_VISIBLE_DEVICES out for several tasks a
    node, and without device cgroups two jobs on a node would share GPU 0.
    """
    return [
        "srun",
        f"--job-name={STEP}",
        f"--nodes={layout.nodes}",
        f"--ntasks={layout.nodes * layout.tasks_per_node}",
        f"--ntasks-per-node={layout.tasks_per_node}",
        f"--cpus-per-task={layout.cpus_per_task}",
        "--mpi=none",
        "--export=ALL",
        "--kill-on-bad-exit=1",
        f"--wait={_WAIT_S}",
        f"--output={paths.logs}/task-%t.log",
        "--open-mode=append",
    ]


def monitor_step(monitor: Monitor, layout: Layout, paths: RunPaths) -> list[str]:
    """The GPU monitor on every node; nothing when it is switched off."""
    if not monitor.enabled:
        return []
    command = [f"{paths.lib}/gpu-monitor.sh", str(paths.monitor), monitor.select, monitor.options, str(monitor.delay)]
    return [*_helper_step("kit-monitor", layout, f"{paths.monitor}/monitor-%n.log"), *command]


def preflight_step(layout: Layout, paths: RunPaths, *, image: str, cache: str, mounts: Sequence[Mount]) -> list[str]:
    """A check of every node before ranks start: the image is readable, mount sources exist, the cache folder can be made."""
    sources = [m.source for m in mounts if m.source not in {"tmpfs", cache}]
    command = [f"{paths.lib}/preflight.sh", image if Path(image).is_absolute() else "", cache, *sources]
    return [*_helper_step("kit-preflight", layout, ""), *command]


def _helper_step(name: str, layout: Layout, output: str) -> list[str]:
    """One task a node beside the training step, without memory or CPUs of its own (field-notes 24)."""
    return [
        "srun",
        f"--job-name={name}",
        "--overlap",
        "--mem=0",
        f"--nodes={layout.nodes}",
        f"--ntasks={layout.nodes}",
        "--ntasks-per-node=1",
        "--cpus-per-task=1",
        "--mpi=none",
        "--export=ALL",
        *([f"--output={output}", "--open-mode=append"] if output else []),
    ]


def _gpu_options(node: NodeShape, layout: Layout) -> list[str]:
    if not layout.gpus_per_node or node.gres == "none":
        return []
    if node.gres == "gpus-per-node":
        return [f"--gpus-per-node={layout.gpus_per_node}"]
    return [f"--gres={node.gres.removeprefix('gres:')}:{layout.gpus_per_node}"]
