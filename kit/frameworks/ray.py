"""Ray: a head on the first node, which runs the job's program once all nodes have joined, and a worker on each other node."""

from __future__ import annotations

from collections.abc import Iterator

from kit.allocation import Allocation, kilobytes
from kit.errors import Fault
from kit.frameworks.base import Extra, Framework
from kit.schema.job import Job
from kit.schema.launcher import Launcher
from kit.schema.roles import Ready, Role

HEAD, WORKER = "ray-head", "ray-worker"
# Ports of the head that others have to know; all the rest Ray chooses itself, so that two jobs may share a node.
_PORTS = ("gcs", "dashboard", "client")
# Seconds for the head to listen: from a cold file system Ray's imports alone take a minute.
_READY_S = 600
_PROGRAM = "{run}/code/ray_node.py"


class Ray:
    """The roles of a Ray cluster. A job's own [roles.ray-head] and [roles.ray-worker] change them."""

    tables = ()

    def resources(self, job: Job) -> dict[str, int]:
        """The nodes that the job asks for. Its other roles take their nodes from them."""
        return {"nodes": job.resources.nodes} if job.roles else {}

    def faults(self, job: Job, launcher: Launcher, allocation: Allocation) -> Iterator[Fault]:
        """See Framework."""
        if job.rank_args:
            problem = "the program runs once, on the first node, so it has no rank that an option could pass"
            yield Fault(key="rank_args", problem=problem, hint="remove the line")
        others, workers = _others(job), _workers(job, allocation)
        if workers < 0:
            problem = f"the other roles take {others} of resources.nodes = {allocation.nodes}: no node is left for Ray"
            yield Fault(key="resources.nodes", problem=problem, hint=f"nodes = {others + 1}")
        elif not workers and WORKER in job.roles:
            problem = f"Ray runs on one node here, and {HEAD} takes it: this job has no {WORKER}"
            yield Fault(key=f"roles.{WORKER}", problem=problem, hint=f"[resources] nodes = {others + 2}")

    def prepare(self, job: Job, launcher: Launcher, allocation: Allocation) -> Extra:
        """See Framework."""
        options = _options(job, allocation)
        head = Role(nodes=1, ports=_PORTS, ready=Ready(tcp=_PORTS[0], timeout_s=_READY_S))
        roles = {HEAD: head}
        if workers := _workers(job, allocation):
            command = (job.python, _PROGRAM, "worker", *options)
            roles[WORKER] = Role(nodes=workers, command=command, policy="service", after=(HEAD,))
        return Extra(
            roles={name: _as_asked(role, job.roles.get(name)) for name, role in roles.items()},
            start=(job.python, _PROGRAM, "head", *options, "--"),
        )


framework: Framework = Ray()


def _others(job: Job) -> int:
    """The number of nodes of the job's other roles. A role with nodes = "rest" counts as one node, its least."""
    counted = [role.nodes for name, role in job.roles.items() if name not in (HEAD, WORKER) and role.shares is None]
    return sum(count if isinstance(count, int) else 1 for count in counted)


def _workers(job: Job, allocation: Allocation) -> int:
    """Nodes of Ray other than the head's."""
    return allocation.nodes - _others(job) - 1


def _options(job: Job, allocation: Allocation) -> tuple[str, ...]:
    """The part of a node that Ray may use. Without these options Ray would take the whole machine, whatever Slurm gave the job."""
    words = [f"--cpus={allocation.cpus_per_node}", f"--gpus={allocation.gpus_per_node}"]
    memory = kilobytes(allocation.memory or "0") * 1024
    words += [f"--memory={memory}"] if memory else []
    # Ray gives a task as many threads as CPUs, where nobody else has said how many.
    return (*words, *([] if "OMP_NUM_THREADS" in job.env else ["--threads-by-ray"]))


def _as_asked(role: Role, own: Role | None) -> Role:
    """The framework's role, with the keys that the job sets in [roles.NAME]."""
    if own is None:
        return role
    given = own.model_dump(exclude_unset=True)
    return Role.model_validate({**role.model_dump(exclude_unset=True), **given})
