"""The cases of `kit why`: each a small job that ends in one way, and the rule, the verdict and the first line that it has to get.

make.py runs them and keeps what is left of their run folders in a folder of the case's name; tests/unit/test_health.py reads those.
"""

from __future__ import annotations

from dataclasses import replace

from tests.why import programs, sick
from tests.why.case import ADMIN, AGAIN, CODE, JOB, NODE, NOTHING, TWO, WAIT, Case

HELD = '[slurm]\nextra = ["--hold"]\n'
STEPS = "import os, time\nfrom kit_rank import progress\nrank = int(os.environ['RANK'])\nprint('up', flush=True)\n"
SLEEP = "import time\nprint('up', flush=True)\ntime.sleep(300)\n"
# Saves on a signal, as the launchers' programs do.
SAVES = """\
import signal, sys, time
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, _: sys.exit(128 + number))
print("up", flush=True)
time.sleep(300)
"""


def _stall(  # noqa: PLR0917 - a row of a table
    rule: str, verdict: str, says: str, fault: str, above: str = "", watch: str = ""
) -> Case:
    """Rank 1 does `fault` at the fifth step, and rank 0 waits for it."""
    program = f"{STEPS}{above}for step in range(1, 99):\n    time.sleep(0.1)\n    if step == 5:\n"
    program += f"        if rank == 1:\n            {fault.replace(chr(10), chr(10) + '    ')}\n"
    program += "        with progress.phase('communicate'):\n            time.sleep(300)\n    progress.step(step)\n"
    return Case(rule=rule, verdict=verdict, says=says, job=TWO + watch, program=program, act="evidence", live=True)


_ENDS: dict[str, Case] = {
    # How a run ends, or does not.
    "completed": Case(rule="completed", verdict=NOTHING, says="ended well", program="print('done')\n"),
    "running": Case(rule="running", verdict=WAIT, says="runs on n", program=SLEEP, act="up", live=True),
    "stalled-behind": Case(
        rule="stalled-behind",
        verdict=CODE,
        says="rank 1 on n\\d is stalled at step 6 .compute. .*; 1 ranks are further",
        job=TWO,
        program=STEPS + "for step in range(1, 99):\n    time.sleep(0.1)\n"
        "    if step == (7 if rank == 1 else 8):\n        time.sleep(300)\n    progress.step(step)\n",
        act="stall",
        live=True,
    ),
    "stalled-phase": Case(
        rule="stalled-phase",
        verdict=JOB,
        says="rank 0 on n\\d is in its data phase of step 4 .*; 1 ranks wait",
        job=TWO,
        program=STEPS + "for step in range(1, 5):\n    time.sleep(0.1)\n    progress.step(step)\n"
        "with progress.phase('data' if rank == 0 else 'communicate'):\n    time.sleep(300)\n",
        act="stall",
        live=True,
    ),
    "stalled-together": Case(
        rule="stalled-together",
        verdict=AGAIN,
        says="all 2 ranks are stalled at step 4 .communicate.",
        job=TWO,
        program=STEPS + "for step in range(1, 5):\n    time.sleep(0.1)\n    progress.step(step)\n"
        "with progress.phase('communicate'):\n    time.sleep(300)\n",
        act="stall",
        live=True,
    ),
    "stall-stopped": _stall(
        "stall-stopped", AGAIN, r"rank 1 .n\d. is stopped, .*; 1 rank waits for it", "os.kill(os.getpid(), 19)"
    ),
    "stall-data": _stall(
        "stall-data",
        JOB,
        r"rank 1 .n\d. is in its data loader, at read \(program\.py:\d+\); 1 rank waits for it",
        "with progress.phase('data'):\n            read()",
        "def read():\n    os.mkfifo('train.bin')\n    open('train.bin', 'rb').read()\n",
    ),
    "stall-save": _stall(
        "stall-save",
        CODE,
        r"rank 1 .n\d. is saving, at save \(program\.py:\d+\); 1 rank waits for it",
        "with progress.phase('save'):\n            save()",
        "import threading\ndef save():\n    lock = threading.Lock()\n    with lock:\n        lock.acquire()\n",
        "[watch]\nstall = 12\n",
    ),
    "stall-loop": _stall(
        "stall-loop",
        CODE,
        r"rank 1 .n\d. runs in work \(program\.py:\d+\) and takes \d+ % of a CPU; 1 rank waits for it",
        "work()",
        "def work():\n    while True:\n        pass\n",
    ),
    "stall-elsewhere": _stall(
        "stall-elsewhere",
        CODE,
        r"rank 1 .n\d. is in nap \(program\.py:\d+\); 1 rank waits for it",
        "nap()",
        "def nap():\n    time.sleep(300)\n",
    ),
    "stall-ended": replace(
        _stall(
            "stall-elsewhere",
            CODE,
            r"^its ranks stood still, and it was ended: rank 1 .n\d. is in nap",
            "nap()",
            "def nap():\n    time.sleep(300)\n",
            "[watch]\npatience = 15\n",
        ),
        act="",
        live=False,
    ),
    "no-progress": Case(
        rule="no-progress",
        verdict=JOB,
        says=r"no progress: the last starts reached no new step; the last: rank 0 on n\d failed first",
        job="[retry]\nin_allocation = 9\n",
        program=STEPS + "for step in range(1, 4):\n    progress.step(step)\ntime.sleep(7)\nos.kill(os.getpid(), 9)\n",
    ),
    "straggler": Case(
        rule="straggler",
        verdict=NODE,
        says=r"it continues, and rank 1 on n\d costs every rank \d\d % of a step",
        job=TWO,
        program=STEPS + "for step in range(1, 999):\n    time.sleep(0.5 if rank == 1 else 0.05)\n"
        "    with progress.phase('communicate'):\n        time.sleep(0.05 if rank == 1 else 0.5)\n    progress.step(step)\n",
        act="stall",
        live=True,
    ),
    "slow-by-nature": Case(
        rule="running",
        verdict=WAIT,
        says="runs on n",
        job=TWO,
        program=STEPS + "for step in range(1, 5):\n    time.sleep(0.1)\n    progress.step(step)\n"
        "with progress.phase('save'):\n    time.sleep(300)\n",
        act="stall",
        live=True,
    ),
    "cancelled": Case(rule="cancelled", verdict=NOTHING, says="cancelled by ", program=SAVES, act="cancel"),
    "cancelled-while-it-waited": Case(
        rule="cancelled",
        verdict=NOTHING,
        says="cancelled by .* before it began",
        job=HELD,
        act="cancel_waiting",
    ),
    "cancelled-by-scancel": Case(
        rule="cancelled-by-slurm", verdict=NOTHING, says="cancelled with scancel", program=SAVES, act="scancel"
    ),
    "time-limit": Case(
        rule="time-limit", verdict=JOB, says="time limit", program=SAVES, job="[slurm]\nlead = 0\n", act="out_of_time"
    ),
    "time-limit-unsaved": Case(
        rule="time-limit-unsaved",
        verdict=JOB,
        says="did not end in the lead time",
        act="lead",
        job="[slurm]\nlead = 6\n",
        program="import signal\nsignal.signal(signal.SIGUSR1, signal.SIG_IGN)\n" + SLEEP,
    ),
    "time-limit-saved": Case(
        rule="time-limit-saved", verdict=AGAIN, says="time limit .* saved", program=SAVES, act="lead"
    ),
    "preempted": Case(rule="preempted", verdict=AGAIN, says="preempted", program=SAVES, act="preempt"),
    "node-lost": Case(rule="node-lost", verdict=NODE, says="a node of it was lost", program=SLEEP, act="lose_node"),
    "batch-killed": Case(
        rule="batch-killed", verdict=NODE, says="the batch script was killed", program=SLEEP, act="kill_batch"
    ),
    "requeued": Case(
        rule="requeued",
        verdict=WAIT,
        says="back in the queue",
        program="import os\nos.kill(os.getpid(), 9)\n",
        job="[retry]\nrequeue = 1\n",
        act="wait_requeue",
        live=True,
    ),
    "retries-exhausted": Case(
        rule="retries-exhausted",
        verdict=CODE,
        says="3 starts .*segmentation fault",
        program="import os\nos.kill(os.getpid(), 11)\n",
        job="[retry]\nin_allocation = 2\n",
    ),
    # Waiting.
    "pending-resources": Case(
        rule="pending-resources",
        verdict=WAIT,
        says="waits for nodes",
        job="[resources]\nnodes = 4\n",
        act="wait_behind",
        live=True,
    ),
    "pending-priority": Case(
        rule="pending-priority",
        verdict=WAIT,
        says="other jobs are before it",
        job="[resources]\nnodes = 4\n",
        act="wait_behind_two",
        live=True,
    ),
    "pending-dependency": Case(
        rule="pending-dependency", verdict=WAIT, says="waits for another job", act="after", live=True
    ),
    "dependency-failed": Case(rule="dependency-failed", verdict=JOB, says="Slurm dropped it", act="after_failed"),
    "pending-impossible": Case(
        rule="pending-impossible",
        verdict=JOB,
        says="never start",
        act="after_failed_kept",
        live=True,
    ),
    "pending-held": Case(
        rule="pending-held",
        verdict=JOB,
        says="held",
        job=HELD,
        act="wait_pending",
        live=True,
    ),
    "pending-held-by-admin": Case(
        rule="pending-held-by-admin",
        verdict=ADMIN,
        says="administrator holds it",
        act="hold",
        live=True,
        job='[slurm]\nextra = ["--begin=now+1hour"]\n',
    ),
    "pending-begin": Case(
        rule="pending-begin",
        verdict=WAIT,
        says="begin",
        job='[slurm]\nextra = ["--begin=now+1hour"]\n',
        act="wait_pending",
        live=True,
    ),
    "pending-limit": Case(
        rule="pending-limit",
        verdict=JOB,
        says="limit",
        job='[slurm]\npartition = "short"\n[resources]\ntime = "01:00:00"\n',
        act="wait_pending",
        live=True,
    ),
    "pending-nodes": Case(
        rule="pending-nodes",
        verdict=ADMIN,
        says="drained or down",
        job='[slurm]\nnodelist = "NODE2"\n',
        act="drain",
        live=True,
    ),
    "pending-partition": Case(
        rule="pending-partition",
        verdict=ADMIN,
        says="partition",
        job='[slurm]\npartition = "closed"\n',
        act="wait_pending",
        live=True,
    ),
    # Before any rank.
    "preflight-disk": Case(
        rule="preflight-disk", verdict=NODE, says="n\\d.*KB free", job="[preflight]\nfree_disk_gb = 1e9\n"
    ),
    "preflight-shm": Case(rule="preflight-shm", verdict=ADMIN, says="/dev/shm", job="[preflight]\nshm_gb = 100000\n"),
    "preflight-limits": Case(
        rule="preflight-limits", verdict=ADMIN, says="ulimit -n", job="[preflight]\nnofile = 2000000000\n"
    ),
    "preflight-mount": Case(
        rule="preflight-mount",
        verdict=JOB,
        says="/no/such/data does not exist",
        job='[[mounts]]\nsource = "/no/such/data"\ntarget = "/data"\n',
        options=("--set", "container.runtime=bubblewrap"),
    ),
    "preflight-interface": Case(
        rule="preflight-interface",
        verdict=JOB,
        says="no network interface ib9",
        job='[env]\nNCCL_SOCKET_IFNAME = "ib9"\n',
    ),
    "preflight-image": Case(
        rule="preflight-image",
        verdict=JOB,
        says="image .*lock says",
        act="wrong_image",
        options=("--set", "container.runtime=bubblewrap"),
    ),
    "preflight-gpu": Case(
        rule="preflight-gpu",
        verdict=NODE,
        says="nvidia-smi",
        act="stuck_gpu",
        job="[resources]\ngpus_per_node = 1\n",
    ),
    "once-failed": Case(
        rule="once-failed", verdict=JOB, says="\\[once\\].*exit code 3", job='[once]\nlines = ["exit 3"]\n'
    ),
    "setup-line": Case(
        rule="setup-line", verdict=JOB, says="set-up line 1 .*module load", job='setup = ["module load cuda/99"]\n'
    ),
    "image-refused": Case(
        rule="image-refused",
        verdict=JOB,
        says="container",
        act="refused_image",
        options=(),
    ),
    "srun-failed": Case(rule="srun-failed", verdict=AGAIN, says="srun", program=SLEEP, act="kill_srun"),
    "submitted-never": Case(rule="never-submitted", verdict=AGAIN, says="never reached Slurm", act="never", job=HELD),
    "manifest-damaged": Case(rule="unreadable", verdict=JOB, says="manifest", act="damage"),
    "lost": Case(rule="lost", verdict=AGAIN, says="Slurm does not know", program=SLEEP, act="forget"),
}
CASES = {**_ENDS, **sick.CASES, **programs.CASES}
