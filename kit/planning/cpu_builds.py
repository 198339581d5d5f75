"""Refuses a job whose ranks get GPUs in an image whose torch cannot use them: the run would compute on CPUs, and say nothing."""

from __future__ import annotations

from collections.abc import Iterator

from kit.errors import ConfigError, Fault
from kit.planning.decisions import Decisions
from kit.planning.placement import RolePlacement
from kit.schema.image import Packages

# Images of containers/ with torch for CPUs, and their counterparts for NVIDIA GPUs (docs/guides/first-gpu-job.md).
_FOR_GPUS = {"train-cpu": "train-gpu", "frameworks-cpu": "frameworks-gpu"}
# The beginnings of names of packages that compute on GPUs without torch.
_OTHER_GPU_PACKAGES = ("cupy-", "jax-cuda", "jax-rocm", "nvidia-cublas", "nvidia-cuda-runtime", "tensorflow")


def check(decisions: Decisions) -> None:
    """ConfigError for each image with a CPU build of torch, in a job whose ranks get GPUs. Only an image with a lock is checked."""
    faults = {fault.key: fault for fault in _faults(decisions)}
    if faults:
        raise ConfigError.of(*faults.values(), file=decisions.resolved.job_file)


def _faults(decisions: Decisions) -> Iterator[Fault]:
    for placed in decisions.roles:
        lock = decisions.pins.find_pin(placed).lock
        build = cpu_build(lock.packages) if lock and placed.role.gpus != () else None
        if lock is None or build is None or (not decisions.computes_with_torch(placed) and _has_other(lock.packages)):
            continue
        gpus = decisions.allocation.gpus_per_node
        key = f"roles.{placed.name}.image" if placed.role.image else "image"
        yield Fault(
            key=key,
            problem=f"{lock.name!r} has torch {build}, a build for CPUs, and the job asks for {gpus} "
            f"GPU{'' if gpus == 1 else 's'} on each node",
            hint=f"{_image_for_gpus(key, lock.name)}; or {_on_cpus(decisions, placed)}",
        )


def cpu_build(packages: Packages) -> str | None:
    """The version of torch, if it is a build for CPUs. PyTorch names its builds in the local part of the version (PEP 440)."""
    version = packages.pip.get("torch", "")
    return version if version.partition("+")[2].startswith("cpu") else None


def _has_other(packages: Packages) -> bool:
    return any(name.startswith(_OTHER_GPU_PACKAGES) for name in packages.pip)


def _image_for_gpus(key: str, name: str) -> str:
    """Whether the image fits the cluster's driver, the kit cannot know."""
    other = _FOR_GPUS.get(name)
    return f"kit build-image {other}, then --set {key}={other}" if other else "an image whose torch is built for GPUs"


def _on_cpus(decisions: Decisions, placed: RolePlacement) -> str:
    job = decisions.job
    if placed.name in job.roles:
        return f"--set 'roles.{placed.name}.gpus=[]' for a role that needs none"
    if job.rl is not None or job.sft is not None:
        return f"--set {'sft' if job.rl is None else 'rl'}.gpus_per_node=0 to use CPUs"
    ranks = decisions.allocation.ranks_per_node
    return f"--set resources.gpus_per_node=0 --set resources.ranks_per_node={ranks} to use CPUs"
