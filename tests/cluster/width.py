"""Measures the cost of a job by its width: the questions that slurmctld answers (sdiag), the files in its run folder, its times."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from kit.schema.run_paths import RunPaths
from tests.cluster.lab import Lab, job_id

# What slurmd and slurmstepd of every node tell slurmctld by themselves, whoever made the job.
SLURMS_OWN = frozenset(
    {"MESSAGE_EPILOG_COMPLETE", "MESSAGE_NODE_REGISTRATION_STATUS", "REQUEST_STEP_COMPLETE", "REQUEST_COMPLETE_PROLOG",
     "REQUEST_STATS_INFO", "REQUEST_PING", "REQUEST_NODE_REGISTRATION_STATUS", "REQUEST_CONFIG"}
)  # fmt: skip
# So many requests of one kind are added, whatever the number of nodes, if a step takes more than two seconds to end, as where many
# slurmds share a core: steps::end asks three times which steps there are, and kills that step once. Each squeue is one
# REQUEST_FED_INFO, each scancel two. One more is for an srun that asks again.
ASKED_AGAIN = 6

SAYS_WHO = """\
import os, socket
print(os.environ["RANK"], os.environ["WORLD_SIZE"], socket.gethostname())
"""
_END_S = 240.0


@dataclass(frozen=True, kw_only=True)
class Width:
    """One job that ended. rpcs: by kind, from before its submit until after its end. Times in seconds.

    files: without the monitor's own. monitor_files: one for each node whose collector has looked for half a minute.
    first_rank_s: from submit until the ranks' step starts. preflight_s: from the batch script's start until then.
    """

    nodes: int
    rpcs: Counter[str]
    files: int
    rank_logs: int
    monitor_files: int
    first_rank_s: float
    preflight_s: float

    @property
    def of_the_kit(self) -> Counter[str]:
        """The questions that are not Slurm's own bookkeeping of nodes."""
        return Counter({kind: count for kind, count in self.rpcs.items() if kind not in SLURMS_OWN})


def measured(lab: Lab, nodes: int, *options: str) -> Width:
    """Run one job of a rank a node, and ask Slurm nothing until it has ended."""
    lab.write(f'shape = "srun"\nscript = "program.py"\n[resources]\nnodes = {nodes}\ngpus_per_node = 1\n', SAYS_WHO)
    lab.slurm("sdiag", "--reset")
    began = time.time()
    run = lab.submit("--no-container", *options)
    paths = RunPaths(run)
    deadline = time.monotonic() + _END_S
    # The end event is on record before the steps are ended and the logs of tasks are merged.
    while not paths.closed.exists():
        assert time.monotonic() < deadline, paths.events.read_text() if paths.events.exists() else "no event"
        time.sleep(0.2)
    text = paths.events.read_text()
    settled(lab)
    rpcs = counts(lab.slurm("sdiag"))
    events = [json.loads(line) for line in text.splitlines()]
    assert events[-1]["exit_code"] in {0, "0"}, (run / "logs" / "batch.log").read_text()
    at = {str(event["event"]): datetime.fromisoformat(str(event["time"])).timestamp() for event in reversed(events)}
    logs = list((run / "logs").glob("rank-*.log"))
    assert len(logs) == nodes
    monitor_files = len(list(paths.monitor.glob(f"slurm-{job_id(run)}.*")))
    return Width(
        nodes=nodes,
        rpcs=rpcs,
        files=sum(path.is_file() for path in Path(run).rglob("*")) - monitor_files,
        monitor_files=monitor_files,
        rank_logs=len(logs),
        first_rank_s=at["attempt"] - began,
        preflight_s=at["attempt"] - at["start"],
    )


def settled(lab: Lab) -> None:
    """Until no node completes a job any more: its epilog is Slurm's, and its messages belong to this job."""
    log = lab.cluster.layout.log("slurmctld")
    deadline = time.monotonic() + 60
    while not re.search(r"_job_complete: JobId=\d+ done\s*$", log.read_text(errors="replace").rstrip()[-4000:], re.M):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def counts(text: str) -> Counter[str]:
    """sdiag's table of messages by type."""
    table = text.partition("by message type")[2].partition("by user")[0]
    return Counter({kind: int(count) for kind, count in re.findall(r"(\w+)\s+\(\s*\d+\)\s+count:(\d+)", table)})
