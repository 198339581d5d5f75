"""The cost of a plan at most: nodes x time limit, for each job that it may become."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from kit.allocation import minutes
from kit.errors import ConfigError, Fault
from kit.planning.plan import Plan
from kit.schema import sbatch_lines


@dataclass(frozen=True, kw_only=True)
class Cost:
    """nodes: with spares. hours: the time limit of one start. starts: of the job at most, with requeues and links of a chain."""

    nodes: int
    gpus_per_node: int
    hours: float
    starts: int

    @property
    def node_hours(self) -> float:
        """Node-hours at most."""
        return self.nodes * self.hours * self.starts

    @property
    def gpu_hours(self) -> float:
        """GPU-hours at most."""
        return self.node_hours * self.gpus_per_node

    def as_data(self) -> dict[str, float]:
        """All of it, by name."""
        return {**asdict(self), "node_hours": round(self.node_hours, 4), "gpu_hours": round(self.gpu_hours, 4)}


def compute_cost(plan: Plan) -> Cost:
    """The cost of a plan, from its batch script as sbatch reads it. ConfigError if it has no bound."""
    job, file = plan.job, plan.decisions.resolved.job_file
    options = sbatch_lines.options(plan.text_of("batch.sh"))
    nodes, limit = options.get("nodes", ""), options.get("time", "")
    faults = []
    if not limit or minutes(limit) <= 0:
        faults.append(Fault(key="resources.time", problem="without a time limit, what the run may use has no bound",
                           hint='[resources]\n       time = "01:00:00"'))  # fmt: skip
    if job.slurm.requeue:
        problem = "Slurm may start the job again any number of times, so what the run may use has no bound"
        faults.append(Fault(key="slurm.requeue", problem=problem, hint="[retry]\n       requeue = 1"))
    if not nodes.isdecimal() or int(nodes) != plan.decisions.every_node or "array" in options:
        problem = "its head asks for other nodes than the job, or for an array of jobs"
        faults.append(Fault(key="slurm.template", problem=problem, hint="remove these #SBATCH lines"))
    if faults:
        raise ConfigError.of(*faults, file=file)
    shape = plan.decisions.node
    gpus = shape.gpus if job.slurm.exclusive else plan.allocation.gpus_per_node
    links = job.chain.times if job.chain else 1
    return Cost(nodes=int(nodes), gpus_per_node=gpus, hours=minutes(limit) / 60, starts=links * (1 + job.retry.requeue))
