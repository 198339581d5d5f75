"""Rules for the reasons why a job waits. The names are Slurm's: squeue(1), "JOB REASON CODES"."""

from __future__ import annotations

from kit.health.answer import ADMIN, JOB, SHOW_JOB, WAIT, Rule

_QUEUE, _NODES, _LIMITS = "squeue --start --jobs={job_id}", "sinfo --list-reasons", "sacctmgr show assoc user=$USER"
_SHRINK = "the job starts by itself; a shorter resources.time or fewer nodes may let it in sooner"
_ABOVE = "ask for less of what the limit names, or for another partition or QOS"

RULES = (
    Rule(
        id="pending-resources",
        verdict=WAIT,
        pattern=r"^Resources$",
        next=_QUEUE,
        says="it waits for nodes: no other job is before it",
        advice=_SHRINK,
    ),
    Rule(
        id="pending-priority",
        verdict=WAIT,
        pattern=r"^Priority$",
        next=_QUEUE,
        says="it waits in the queue: other jobs are before it",
        advice=_SHRINK,
    ),
    Rule(
        id="pending-dependency",
        verdict=WAIT,
        pattern=r"^Dependency$",
        next=SHOW_JOB,
        says="it waits for another job to end",
        advice="the job starts once what it depends on has ended",
    ),
    Rule(
        id="pending-impossible",
        verdict=JOB,
        pattern=r"^DependencyNeverSatisfied$",
        next="kit cancel {run}",
        says="it will never start: the job that it depends on has ended the wrong way",
        advice="cancel it, look why the other one failed, and submit both again",
    ),
    Rule(
        id="pending-held-by-admin",
        verdict=ADMIN,
        pattern=r"^JobHeldAdmin$",
        next=SHOW_JOB,
        says="an administrator holds it, or Slurm does after a failed start",
        advice="only an administrator can release it: scontrol release",
    ),
    Rule(
        id="pending-held",
        verdict=JOB,
        pattern=r"^JobHeldUser$",
        next="scontrol release {job_id}",
        says="it is held: it was submitted with --hold, or scontrol hold came",
        advice="release it",
    ),
    Rule(
        id="pending-begin",
        verdict=WAIT,
        pattern=r"^BeginTime$",
        next=SHOW_JOB,
        says="it may not begin yet: it has a begin time, or was queued again a moment ago",
        advice="Slurm holds a requeued job for about two minutes",
    ),
    Rule(
        id="pending-limit",
        verdict=JOB,
        next=_LIMITS,
        pattern=r"^(?P<name>(?:Partition(?:(?:Time|Node)Limit|Config)|QOS\w+|Assoc\w+|Max\w+PerAccount|JobArrayTaskLimit|InvalidQOS|InvalidAccount))$",
        says="it is above a limit of the site: {name}",
        advice=_ABOVE,
    ),
    Rule(
        id="pending-nodes",
        verdict=ADMIN,
        next=_NODES,
        pattern=r"^(?:ReqNodeNotAvail|Nodes required for job are DOWN|NodeDown|BadConstraints|Reserved for maintenance)",
        says="the nodes that it asks for are drained or down, or kept for a reservation",
        advice="ask for other nodes (slurm.nodelist, slurm.constraint), or wait until they are back",
    ),
    Rule(
        id="pending-partition",
        verdict=ADMIN,
        pattern=r"^Partition(?:Down|Inactive)$",
        next="sinfo --summarize",
        says="its partition takes no jobs now",
        advice="choose another slurm.partition, or wait until it is up",
    ),
    Rule(
        id="pending",
        verdict=WAIT,
        pattern=r"^(?P<name>.*)$",
        next=SHOW_JOB,
        says="it waits; Slurm's reason is {name}",
        advice="squeue(1) explains the reason",
    ),
)
