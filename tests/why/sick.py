"""Cases of stalled ranks, and of nodes that are ill, which need torch or a node that something is done to."""

from __future__ import annotations

from tests.why.case import ADMIN, CODE, FOUR, GROUP, NODE, NODES_2, TWO, Case

STEPS = f"{GROUP.replace('seconds=6', 'seconds=900')}import pathlib\nfrom kit_rank import progress\nprint('up', flush=True)\n"
RUN = "run = pathlib.Path(os.environ['KIT_RUN_DIR'])\n"


def _loop(fault: str, above: str = "") -> str:
    """Steps of an all-reduce; `fault` is done at the fifth, before it."""
    faulty = "".join(f"        {line}\n" for line in fault.splitlines())
    return (
        f"{STEPS}{above}for step in range(1, 999):\n    time.sleep(0.2)\n    tensor = torch.ones(1000)\n    if step == 5:\n{faulty}"
        "    with progress.phase('communicate'):\n        dist.all_reduce(tensor)\n    progress.step(step)\n"
    )


# A server that ends, and again whenever it comes back; and a role that asks it at every step.
ROLES = """\
[resources]
gpus_per_node = 0
time = "00:05:00"
[roles.server]
script = "program.py"
args = ["{server.port.ask}"]
ports = ["ask"]
ready = { tcp = "ask", timeout_s = 60 }
policy = "service"
restart = 20
nodes = 1
[roles.work]
script = "program.py"
after = ["server"]
nodes = 1
"""
ROLES_PROGRAM = """\
import os, socket, sys, time
if os.environ["KIT_ROLE"] == "server":
    if os.environ["KIT_RESTART_COUNT"] != "0":
        sys.exit(7)
    with socket.create_server(("0.0.0.0", int(sys.argv[1]))) as server:
        for _ in range(60):
            server.accept()[0].close()
    sys.exit(7)
from kit_rank import progress
print("up", flush=True)
for step in range(1, 999):
    with progress.phase("communicate"):
        while True:
            try:
                socket.create_connection((os.environ["KIT_ROLE_SERVER_ADDR"], os.environ["KIT_ROLE_SERVER_PORT_ASK"])).close()
                break
            except OSError:
                time.sleep(0.2)
    time.sleep(0.2)
    progress.step(step)
"""

CASES: dict[str, Case] = {
    "stall-gil": Case(
        rule="stall-gil",
        verdict=CODE,
        says=r"rank 1 .n\d. holds the interpreter in hold \(program\.py:\d+\) while it waits .*; 1 rank waits for it in all_reduce",
        job=TWO,
        torch=True,
        program=_loop(
            "if rank == 1:\n    hold()",
            "import ctypes\ndef hold():\n    mutex, library = ctypes.create_string_buffer(64), ctypes.PyDLL(None)\n"
            "    library.pthread_mutex_lock(mutex)\n    library.pthread_mutex_lock(mutex)\n",
        ),
        act="evidence",
        live=True,
    ),
    "stall-order": Case(
        rule="stall-order",
        verdict=CODE,
        says=r"rank 1 .n\d. is in broadcast.*, and 3 ranks are in all_?reduce",
        job=FOUR,
        torch=True,
        program=_loop("if rank == 1:\n    dist.broadcast(tensor, 0)"),
        act="evidence",
        live=True,
    ),
    # Gloo fills as much of a longer tensor as comes, and says nothing; what the rank then has leads it elsewhere.
    "stall-shape": Case(
        rule="stall-shape",
        verdict=CODE,
        says=r"rank 3 .n\d. called broadcast #\d of Float \[\[1000\]\], and 3 ranks called broadcast #\d of Float \[\[10\]\]",
        job=FOUR,
        torch=True,
        program=_loop(
            "batch = torch.zeros(1000 if rank == 3 else 10)\ndist.broadcast(batch, 0)\nif rank == 3:\n    time.sleep(900)"
        ),
        act="evidence",
        live=True,
    ),
    "stall-kernel": Case(
        rule="stall-kernel",
        verdict=ADMIN,
        says=r"rank 1 .n\d. waits in the kernel \(\w+\) with \S*/train\.bin open; 1 rank waits for it in all_reduce",
        job=TWO,
        torch=True,
        program=_loop(
            "if rank == 1:\n    (run / 'fault-ready').touch()\n    while not (run / 'fault-go').exists():\n"
            "        time.sleep(0.05)\n    os.pread(file, 65536, 1 << 20)",
            f"{RUN}file = os.open(run.parents[1] / 'data' / 'train.bin', os.O_RDONLY)\n",
        ),
        act="stop_disk",
        live=True,
    ),
    "stall-unreachable": Case(
        rule="stall-unreachable",
        verdict=NODE,
        says=r"rank 1 on n2: its node n2 did not answer when evidence was gathered, and 1 ranks of other nodes wait",
        job=NODES_2,
        torch=True,
        program=_loop("(run / 'fault-ready').touch()", RUN),
        act="cut_link",
        live=True,
    ),
    "clock-wrong": Case(
        rule="clock-wrong",
        verdict=ADMIN,
        says=r"it continues, and the clock of n2 is (?:29\d|30\d) s ahead of that of the run folder's file system",
        job=NODES_2,
        # The machine has one clock: the collector of the node has another, by the test, and its rank here.
        program="import os, time\nfrom kit_rank import progress\nprint('up', flush=True)\nright = time.time\n"
        "wrong = os.environ['KIT_RUN_DIR'] + '/clock-wrong'\n"
        "for step in range(1, 999):\n    if os.environ['RANK'] == '1' and os.path.exists(wrong):\n"
        "        time.time = lambda: right() + 300\n    time.sleep(1.5)\n    progress.step(step)\n",
        act="turn_clock",
        live=True,
    ),
    "role-down": Case(
        rule="role-down",
        verdict="try again",
        says=r"role server on n1 is down: it ended with 7 and is started again \(\d times so far\); 1 rank waits for it",
        job=ROLES,
        program=ROLES_PROGRAM,
        act="lose_server",
        live=True,
    ),
    "stepd-killed": Case(
        rule="stepd-killed",
        verdict=NODE,
        says="slurmstepd of .* was killed",
        program="import time\nprint('up', flush=True)\ntime.sleep(300)\n",
        act="kill_stepd",
    ),
    "terminated": Case(
        rule="terminated",
        verdict="try again",
        says="ended with TERM, and nothing says by whom",
        program="import os, signal, time\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(60)\n",
    ),
    "not-executable": Case(
        rule="not-executable",
        verdict="fix the job",
        says="program.py.*: Permission denied",
        job='[resources]\ngpus_per_node = 0\ntime = "00:05:00"\n[roles.tool]\ncommand = ["./program.py"]\nnodes = 1\n',
    ),
}
