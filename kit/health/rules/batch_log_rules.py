"""Rules for ends before the ranks start or from outside: on the batch script's log and the preflight's reports."""

from __future__ import annotations

from kit.health.answer import ADMIN, AGAIN, JOB, LOGS, NODE, SUBMIT, WITHOUT_NODE, Rule

# Reports of nodes have the form `NODE: FAULT`.
_AT = r"^(?P<node>[\w.-]+): "
# The batch script repeats the reason of each node that did not get the image.
_STAGED = r"^  \| (?P<node>[\w.-]+): image not staged: "
_CHECK = "sinfo --Node --nodes={node} --long"

_OLD_BASH = Rule(
    id="old-bash",
    verdict=ADMIN,
    pattern=_AT + r"(?P<what>bash \S+ is too old here: .*)",
    says="{node}: {what}",
    advice="ask for a newer bash as /bin/bash of the nodes; docs/guides/administrator.md has the oldest version of each tool",
    next=_CHECK,
)

PREFLIGHT = (
    _OLD_BASH,
    Rule(
        id="preflight-image",
        verdict=JOB,
        next="kit verify-image",
        pattern=_AT + r"(?P<what>image .* (?:its lock says|is not readable here).*)",
        says="{node}: {what}",
        advice="build or import the image again, then submit; every node has to see the image store",
    ),
    Rule(
        id="preflight-disk",
        verdict=NODE,
        pattern=_AT + r"(?P<what>\S+ has \d+ KB free, \d+ are wanted).*",
        says="{node}: {what}",
        advice="leave the node out, or ask for less: preflight.free_disk_gb",
        next=WITHOUT_NODE,
    ),
    Rule(
        id="preflight-shm",
        verdict=ADMIN,
        pattern=_AT + r"(?P<what>/dev/shm has .*)",
        says="{node}: {what}",
        next=_CHECK,
        advice="/dev/shm is sized when a node boots; ask for it, or lower preflight.shm_gb",
    ),
    Rule(
        id="preflight-limits",
        verdict=ADMIN,
        pattern=_AT + r"(?P<what>ulimit -.*)",
        says="{node}: {what}",
        next=_CHECK,
        advice="limits are those of slurmd's service file; ask for them, or lower preflight's figures",
    ),
    Rule(
        id="preflight-mount",
        verdict=JOB,
        pattern=_AT + r"mount source (?P<what>.* does not exist) here",
        says="{node}: {what}",
        advice="correct the path in [mounts] or mounts/, or copy the data to where every node sees it",
        next="kit render {job_file}",
    ),
    Rule(
        id="preflight-interface",
        verdict=JOB,
        pattern=_AT + r"(?P<what>no network interface .* here); (?P<there>.*)",
        says="{node}: {what}; {there}",
        advice="unset NCCL_SOCKET_IFNAME, or name an interface that every node has",
        next="kit render {job_file}",
    ),
    Rule(
        id="preflight-gpu",
        verdict=NODE,
        pattern=_AT + r"(?P<what>(?:nvidia-smi|GPU \d+|\d+ GPUs have).*)",
        says="{node}: {what}",
        advice="leave the node out, and tell the administrator",
        next=WITHOUT_NODE,
    ),
    Rule(
        id="preflight",
        verdict=NODE,
        pattern=_AT + r"(?P<what>.+)",
        says="{node}: {what}",
        advice="do what the report says, or leave the node out",
        next=WITHOUT_NODE,
    ),
)

BATCH = (
    _OLD_BASH,
    Rule(
        id="disk-full",
        verdict=JOB,
        pattern=r"error: no space is left where the run folder is: (?P<what>.*)",
        says="no space is left: {what}",
        advice="make space there, or set paths.runs of the cluster",
        next=SUBMIT,
    ),
    Rule(
        id="image-replaced",
        verdict=JOB,
        pattern=r"error: image (?P<image>\S+) was replaced under the run.*",
        says="image {image} was replaced while the run continued",
        advice="submit a new run with the new image",
        next=SUBMIT,
    ),
    Rule(
        id="image-refused",
        verdict=JOB,
        next="kit logs {run} --grep pyxis",
        pattern=(
            r"pyxis: (?P<what>(?:failed to import docker image|couldn't start container|container start "
            r"failed|.*401 Unauthorized).*)"
        ),
        says="the container did not start: {what}",
        advice="the lines after it give Enroot's reason, such as a wrong image name, missing credentials, or a user with no shell",
    ),
    Rule(
        id="task-prolog",
        verdict=JOB,
        pattern=r"task_prolog can not be executed \((?P<file>/[^)\s]+)\)",
        says="Slurm runs the site's TaskProlog {file} in the container, which does not have it",
        advice='in the cluster file, below [container]: task_prolog = "{file}"',
        next="scontrol show config",
    ),
    Rule(
        id="stage-image",
        verdict=JOB,
        pattern=_STAGED + r"(?P<what>the copy has the digest .*|no node can read .*|.* is not readable here)",
        says="{node} did not get the image: {what}",
        advice="the file in the image store is damaged or gone; build or import the image again",
        next="kit verify-image --full",
    ),
    Rule(
        id="stage-node",
        verdict=NODE,
        pattern=_STAGED + r"(?P<what>.*)",
        says="{node} did not get the image: {what}",
        advice="leave the node out, or make room on its disk; logs/stage.log has more",
        next=WITHOUT_NODE,
    ),
    Rule(
        id="stage-failed",
        verdict=NODE,
        pattern=r"error: (?P<what>the image was not staged on .*); no rank was started",
        says="{what}",
        advice="look at the free space of the nodes' disks: logs/stage.log",
        next=LOGS,
    ),
    Rule(
        id="stepd-killed",
        verdict=NODE,
        pattern=r"(?:the batch script's slurmstepd|step \S+ is killed: slurmstepd, by which Slurm runs it,) is gone",
        next=LOGS,
        says="a slurmstepd of it was killed, by which Slurm runs and ends the processes of a node",
        advice="why is unknown: dmesg of its node says whether memory was short; the program did not end by itself",
    ),
    Rule(
        id="point-not-made",
        verdict=AGAIN,
        pattern=r"^(?P<what>the run folder of task \d+) was not made$",
        next="kit sweep --retry",
        says="its task in the sweep's array ended before any rank: {what} could not be made",
        advice="the line above it in the batch log is the reason, such as a full disk; the point has no result until it runs again",
    ),
    Rule(
        id="once-failed",
        verdict=JOB,
        pattern=r"error: the lines of \[(?P<table>once|per_node)\] ended with exit code (?P<code>\d+)",
        says="the lines of [{table}] ended with exit code {code}",
        advice="correct the line that {table}.log shows",
        next="kit logs {run} --grep .",
    ),
    Rule(
        id="site-part-failed",
        verdict=ADMIN,
        pattern=r"error: part (?P<name>\w+) of the site: before_ranks (?P<what>ended with exit code \d+|took longer than \d+ s)",
        says="the site's own part {name} ended the job before its ranks: its before_ranks {what}",
        advice="the lines above it in the batch log are the part's own; those who look after the cluster wrote it",
    ),
    Rule(
        id="torchrun-missing",
        verdict=JOB,
        pattern=r"specification for 'torch\.distributed\.run' \(ModuleNotFoundError: No module named '(?P<name>\w+)'",
        says="the Python that runs has no {name}, so torchrun does not start",
        advice="name an image that has torch, or the interpreter that does: image, python, setup",
        next="kit render {job_file}",
    ),
    Rule(
        id="all-reduce",
        verdict=NODE,
        pattern=r"error: (?P<what>the all-reduce over \d+ ranks .*?)(?:;|$)",
        says="{what}",
        advice="look at the network: submit again with --debug for NCCL's own words",
        next="kit submit {job_file} --debug",
    ),
    Rule(
        id="nodes-too-few",
        verdict=AGAIN,
        pattern=r"error: (?P<what>\d+ good nodes are left of .*)",
        says="{what}",
        advice="submit again, or ask for spares: retry.spares",
        next=SUBMIT,
    ),
    Rule(
        id="oom-killed",
        verdict=JOB,
        pattern=r"(?P<what>oom[-_ ]kill|Out Of Memory|OOM Killed)",
        says="a node ran out of memory, and Slurm or the kernel killed ranks",
        advice="ask for more memory (resources.memory), or use less: smaller batches, fewer data workers",
    ),
    Rule(
        id="role-silent",
        verdict=JOB,
        pattern=r"error: (?P<what>role \S+ was not ready within .*)",
        says="{what}",
        advice="look at the role's own log; a bigger ready_timeout helps a slow start",
        next=LOGS,
    ),
    Rule(
        id="srun-failed",
        verdict=AGAIN,
        pattern=(
            # On Slurm 26.05 a step may end together with its srun. Then the batch script does not print that srun is gone.
            r"(?:error: (?P<gone>srun is gone and step \S+ is not)"
            r"|error: (?:step \S+: )?(?P<unsaid>the ranks ended with 137, and no rank recorded why)"
            r"|srun: error: (?P<what>Unable to create "
            r"step.*|Cannot communicate with node.*"
            r"|task launch failed.*|.*Communication connection "
            r"failure.*))"
        ),
        says="srun could not reach the ranks, or was killed: {gone}{unsaid}{what}",
        advice="submit again; if it comes back, look at the node",
        next=SUBMIT,
    ),
)
