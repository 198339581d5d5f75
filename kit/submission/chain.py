"""Chains: the later links of a run that is longer than its time limit.

All links share one run folder. Each link waits until all earlier ones have ended with a code other than 0. A link that ends with 0
makes the later ones impossible, and Slurm drops them.
"""

from __future__ import annotations

from dataclasses import replace

from kit.errors import ConfigError, Fault
from kit.hosts.chain_links import LINK
from kit.planning.parts import code_digest
from kit.planning.plan import Plan, PlanFile
from kit.planning.sbatch_header import header
from kit.render import render


def with_links(plan: Plan, *, file: str) -> Plan:
    """The plan of a chain, with a script for the later links."""
    if plan.job.secrets.env or plan.job.secrets.file:
        problem = "a chain cannot have secrets: they are removed when its first link ends"
        # A requeued job keeps its memory of failures from one start to the next.
        raise ConfigError.of(Fault(file=file, key="chain", problem=problem, hint="[retry]\n       requeue = 10"))
    if plan.job.notify.on and plan.job.notify.by == "batch":
        problem = "a chain's batch scripts cannot send: the file with the URLs is removed when the first link ends"
        raise ConfigError.of(Fault(file=file, key="notify.by", problem=problem, hint='by = "watch"'))
    batch = plan.text_of("batch.sh")
    code = code_digest(plan.decisions, {"batch.sh": batch})
    text = render(f"bin/{LINK}", {"sbatch": header(batch), "run_dir": plan.run_dir, "code": code})
    return replace(plan, files=(*plan.files, PlanFile(name=LINK, text=text, mode=0o755)))
