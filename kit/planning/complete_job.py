"""Completes a job: nodes and GPUs from its roles or its framework's table, runtime, seed, start shape, lead.

After `completed` no choice of the job is open, and no later step makes another copy of the job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from kit import frameworks
from kit.allocation import minutes
from kit.config import Resolved
from kit.errors import ConfigError, Fault
from kit.planning.plan_inputs import Site
from kit.schema.image_choice import ImageChoice, is_reference
from kit.schema.job import Job
from kit.schema.resources_slurm_container import Resources
from kit.schema.roles import Role


def completed(resolved: Resolved, site: Site) -> Resolved:
    """The job with every choice made.

    ConfigError when its launcher cannot start it in this way, or its [resources] contradict its roles.
    """
    job, shapes = resolved.job, resolved.launcher.shapes
    shape = job.shape or shapes[0]
    if shape not in shapes:
        problem = f"launcher {job.launcher!r} cannot start ranks by {shape!r}"
        fault = Fault(key="shape", problem=problem, allowed=", ".join(shapes), hint=f'shape = "{shapes[0]}"')
        raise ConfigError.of(fault, file=resolved.job_file)
    runtime = _runtime(resolved, site)
    if job.container.capabilities and runtime not in ("bubblewrap", "bare"):
        problem = f"runtime {runtime} gives a job no capabilities: only bubblewrap can, to root"
        hint = 'runtime = "bubblewrap", or remove the line'
        raise ConfigError.of(Fault(key="container.capabilities", problem=problem, hint=hint), file=resolved.job_file)
    choices = {
        "resources": _resources(resolved),
        "slurm": job.slurm.model_copy(update={"lead": _lead(resolved)}),
        "inherit": tuple(dict.fromkeys((*resolved.cluster.inherit, *job.inherit))),
        "shape": shape,
        "rendezvous": _rendezvous(resolved, shape),
        "seed": site.seed if job.seed is None else job.seed,
        "container": job.container.model_copy(update={"runtime": runtime}),
        "image": _image(resolved),
    }
    return replace(resolved, job=job.model_copy(update=choices))


def _image(resolved: Resolved) -> str | ImageChoice | None:
    """The image, with the cluster's stage where the job names none. A reference to a registry has no file to copy."""
    image, stage = resolved.job.image, resolved.cluster.container.stage
    if image is None or stage == "shared" or is_reference(resolved.job.image_name or ""):
        return image
    if isinstance(image, str):
        return ImageChoice(name=image, stage=stage)
    return image if image.stage is not None else image.model_copy(update={"stage": stage})


def _rendezvous(resolved: Resolved, shape: str) -> str:
    """How torchrun's nodes meet. ConfigError without torchrun, and for a static rendezvous with torchrun's own restarts."""
    job = resolved.job
    if job.rendezvous == "c10d" and shape == "srun":
        problem = f"the start shape 'srun' has no torchrun, so a rendezvous {job.rendezvous!r} has no effect"
        hint = 'shape = "torchrun"' if "torchrun" in resolved.launcher.shapes else "remove the line"
        raise ConfigError.of(Fault(key="rendezvous", problem=problem, hint=hint), file=resolved.job_file)
    # torchrun keeps the store of a static rendezvous over its restarts, and its nodes do not wait for each other. So restarted
    # ranks read addresses of killed ranks, fail again, and use up the restarts.
    if job.rendezvous == "static" and job.torchrun.max_restarts and shape == "torchrun":
        restarts = f"torchrun.max_restarts = {job.torchrun.max_restarts}"
        problem = f"torchrun's own restarts ({restarts}) do not work reliably with a static rendezvous"
        hint = 'rendezvous = "c10d"; or max_restarts = 0, and [retry] for restarts by the kit'
        raise ConfigError.of(Fault(key="rendezvous", problem=problem, hint=hint), file=resolved.job_file)
    return job.rendezvous or ("c10d" if job.torchrun.max_restarts and shape == "torchrun" else "static")


def _lead(resolved: Resolved) -> int:
    """The lead in seconds.

    If the default is not shorter than the time limit, a quarter of the limit; else the signal would come before the ranks start.
    """
    slurm, limit = resolved.job.slurm, resolved.job.resources.time
    name, _, own = (slurm.signal or "").partition("@")
    lead = int(own) if own else slurm.lead
    seconds = int(60 * minutes(limit)) if limit else 0
    key, then = ("signal", f'signal = "{name}@{seconds // 4}"') if own else ("lead", f"lead = {seconds // 4}")
    if own and resolved.asked_slurm.get("lead", lead) != lead:
        problem = f"the signal comes {lead} s before the limit, and slurm.lead says {slurm.lead} s"
        fault = Fault(key="slurm.signal", problem=problem, hint=f'signal = "{name}"')
        raise ConfigError.of(fault, file=resolved.job_file)
    if slurm.signal and not lead:
        problem = f"with a lead of 0 s the ranks never get {name} before the limit"
        fault = Fault(key="slurm.signal", problem=problem, hint=f'signal = "{name}@120"' if own else "lead = 120")
        raise ConfigError.of(fault, file=resolved.job_file)
    # 0 minutes mean no limit.
    if not seconds or lead < seconds:
        return lead
    if own or "lead" in resolved.asked_slurm:
        problem = f"a lead of {lead} s is not shorter than the time limit, resources.time = {limit}"
        raise ConfigError.of(Fault(key=f"slurm.{key}", problem=problem, hint=then), file=resolved.job_file)
    return seconds // 4


def _runtime(resolved: Resolved, site: Site) -> str:
    """The name of the runtime: the job's choice before the cluster's. 'auto' is pyxis if Slurm has it, else bubblewrap."""
    if not site.containers:
        return "bare"
    for asked in (resolved.job.container.runtime, resolved.cluster.container.runtime):
        if asked != "auto":
            return asked
    return "pyxis" if site.pyxis else "bubblewrap"


def _resources(resolved: Resolved) -> Resources:
    """The resources that the job's roles or its framework's table need. They override a default of the cluster or the launcher."""
    job = resolved.job
    needed = frameworks.resources(resolved.launcher.framework, job)
    if job.roles and "nodes" not in needed:
        needed["nodes"] = _nodes(resolved, job.roles)
    if faults := [*_contradictions(resolved, needed)]:
        raise ConfigError.of(*faults, file=resolved.job_file)
    return job.resources.model_copy(update=needed)


def _contradictions(resolved: Resolved, needed: Mapping[str, int]) -> Iterator[Fault]:
    """Values given by the user that differ from the needed ones."""
    job: Job = resolved.job
    for key, value in needed.items():
        # Under --debug, the job's own value differs from the user's.
        if value not in (getattr(job.resources, key), resolved.asked.get(key, value)):
            said, table = resolved.asked[key], resolved.launcher.framework or "roles"
            problem = f"{said} contradicts [{table}], which needs {value}"
            yield Fault(key=f"resources.{key}", problem=problem, hint=f"{key} = {value}, or remove the line")


def _nodes(resolved: Resolved, roles: Mapping[str, Role]) -> int:
    """The sum over the roles, or `resources.nodes` if one role takes the rest. ConfigError when no node is left for it."""
    total = resolved.job.resources.nodes
    own = [role.nodes or 1 for role in roles.values() if role.shares is None]
    counted = sum(n for n in own if n != "rest")
    rest = own.count("rest")
    if rest > 1 or (rest and total <= counted):
        problem = f"the other roles take {counted} of resources.nodes = {total}: no node is left for nodes = 'rest'"
        fault = Fault(key="roles", problem=problem, hint=f"[resources] nodes = {counted + 1}")
        if rest > 1:
            problem = f"{rest} roles ask for nodes = 'rest', and only one can have what is left"
            fault = Fault(key="roles", problem=problem, hint="give all but one a number, such as nodes = 1")
        raise ConfigError.of(fault, file=resolved.job_file)
    return total if rest else counted
