"""The functions of the batch script in a bash without a Slurm: stand-ins for its commands, which note each call."""

from __future__ import annotations

import os
from pathlib import Path

from kit import shell
from tests import laid_out

LIB = laid_out.LIB
BIN = laid_out.BIN
LIBRARIES = (
    "clock", "log", "numbers", "environment", "output_links", "debug", "slurm", "nodes", "events", "loops", "heartbeat",
    "container_names", "steps", "failures", "failure_watch", "stall_watch", "image_chain", "pinned_image", "staging", "preflight",
    "retry", "restarts", "endpoints", "job_roles", "role_policy", "roles", "signals", "workspace", "warm_ranks", "parts",
)  # fmt: skip
# `held`, `states` and `addresses` are files beside the stand-ins that a test writes.
COMMANDS = {
    "squeue": 'case "$*" in *%N*) cat "${0%/*}/held" ;; *%T*) echo RUNNING ;; *--steps*) cat "${0%/*}/steps" ;; esac',
    "sinfo": 'case "$*" in *%o*) cat "${0%/*}/addresses" ;; *) cat "${0%/*}/states" ;; esac',
    "scontrol": 'case "$1 $2" in "show hostnames") tr "," "\\n" <<<"$3" ;; "show job") cat "${0%/*}/job" ;; esac',
    "scancel": ":",
    "srun": 'while [[ "$1" == --* ]]; do shift; done; exec "$@"',
}
# Two main roles and a replica, a node each; `true` is what their steps run.
STEPS = "\n".join(
    f"declare -A KIT_STEP_{i}=([name]={name} [folder]=roles/{name} [variable]={name.upper()} [policy]={policy} [first]={i} "
    f"[nodes]=1 [ranks]=1 [ports]= [after]= [ready]= [restart]={restart} [least]=1 [health]=)\n"
    f"declare -a KIT_STEP_{i}_ARGV=(srun true) KIT_STEP_{i}_ENV=()"
    for i, (name, policy, restart) in enumerate([("a", "main", 0), ("b", "main", 0), ("c", "replica", 2)])
)


class BatchLab:
    """A run folder and stand-ins for Slurm's commands. Nodes are n1 to n4, of which the ranks have three."""

    def __init__(self, folder: Path) -> None:
        self.programs, self.run_dir = folder / "programs", folder / "run"
        for path in (self.programs, self.run_dir / "state", self.run_dir / "logs"):
            path.mkdir(parents=True)
        for name, text in COMMANDS.items():
            self.command(name, text)
        self.nodes("n1,n2,n3,n4")
        self.say("states", "".join(f"n{i} allocated\n" for i in range(1, 5)))
        self.say("addresses", "".join(f"n{i} 10.0.0.{i}\n" for i in range(1, 5)))
        self.say("job", "JobId=7 ExcNodeList=(null) \n")
        self.say("steps", "")

    def command(self, name: str, text: str) -> None:
        """A stand-in for a command."""
        path = self.programs / name
        path.write_text(f'#!/bin/bash\necho "{name} $*" >>"${{0%/*}}/calls"\n{text}\n')
        path.chmod(0o755)

    def say(self, name: str, text: str) -> None:
        """What a stand-in prints."""
        (self.programs / name).write_text(text)

    def nodes(self, names: str) -> None:
        """The nodes that Slurm says the job still has, with commas."""
        self.say("held", names)

    def calls(self, *names: str) -> list[str]:
        """Calls of these commands that ask the controller; `scontrol show hostnames` asks nobody."""
        path = self.programs / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.split()[0] in names and "show hostnames" not in line]

    def bash(self, script: str, **env: str) -> list[str]:
        """What a script says that has the functions, on both streams."""
        argv, given = self.script(script, **env)
        return shell.run(argv, env=given, check=False, timeout=60).stdout.splitlines()

    def script(self, script: str, **env: str) -> tuple[list[str], dict[str, str]]:
        """Words and environment that run a script which has the functions; both streams are one."""
        constants = "\n".join(
            (
                "set -uo pipefail",
                f"KIT_RUN_DIR={self.run_dir} KIT_NODES=3 KIT_STEPS=3 KIT_OUTLIVES=1 KIT_MASTER_PORT_BASE=20000",
                "KIT_LEAD=120 KIT_LEAD_SIGNALS=USR1,TERM KIT_GRACE=90 KIT_NO_PROGRESS=3",
                "KIT_RETRY_CODES=(137) KIT_RETRY_REQUEUE=0 KIT_REQUEUE_CAPPED=0 KIT_RETRY_IN_ALLOCATION=0 KIT_RUNTIME=bare",
                f"KIT_SIGNAL_ARGV=(srun --job-name=kit-signal true) KIT_AVOID_DIR={self.run_dir}/avoid KIT_IMAGES=()",
                "KIT_PREFLIGHT_TIMEOUT=20 KIT_PREFLIGHT_ON_FAILURE=fail KIT_PROBE_ARGV=() KIT_PREFLIGHT_ARGV=()",
                "KIT_STAGE_ARGV=() KIT_MONITOR_ARGV=() KIT_PARTS=(job_roles)",
                STEPS,
                *(f"source {LIB}/{name}.sh" for name in LIBRARIES),
                "nodes::listening() { return 1; }",
                "environment_job=7 environment_batch=1 environment_share=() nodes_all=(n1 n2 n3 n4)",
                'export KIT_NODE_NAMES="n1 n2 n3" KIT_MASTER_ADDR=10.0.0.1',
            )
        )
        given = {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "n1,n2,n3,n4",
            "SLURMD_NODENAME": "n1",
            **env,
        }
        file = self.run_dir.parent / "script.sh"
        file.write_text(f"exec 2>&1\n{constants}\n{script}\n")
        return ["env", "--default-signal=HUP,INT,QUIT", "bash", str(file)], given
