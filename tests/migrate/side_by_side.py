"""Seven scripts of the corpus, as unlike each other as it has them, with programs that Slurm can run here: what they start, how
their ranks meet, what comes before and after them, and who handles the signal.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_HEAD = """\
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --cpus-per-task=2
#SBATCH --time=30
"""
_TWO_RANKS = """\
#!/bin/bash
#SBATCH -N 2 --ntasks-per-node=2 -c 1 -t 30
"""
_FIRST = (
    "nodes=($(scontrol show hostnames $SLURM_JOB_NODELIST))\nexport MASTER_ADDR=${nodes[0]}\nexport MASTER_PORT=29511\n"
)


@dataclass(frozen=True, kw_only=True)
class Script:
    """One script. ranks: of its program. code: of the run, if rank 1 (or the only one) ends with 5. files: beside it.

    left: files that the script itself leaves behind, besides those of the ranks.
    """

    text: str
    ranks: int = 4
    code: int = 5
    files: dict[str, str] = field(default_factory=dict)
    left: tuple[str, ...] = ()


SCRIPTS = {
    "torchrun-in-a-pipe": Script(
        text=_HEAD.replace("--cpus", "--gpus-per-node=1 --cpus")
        + "set -o pipefail\nsource env.sh\n"
        + _FIRST
        + "export NCCL_DEBUG=WARN\nLR=0.1\nsrun torchrun --nnodes=$SLURM_NNODES --nproc_per_node=2 --rdzv_id=$RANDOM "
        "--rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT train.py --lr $LR 2>&1 | tee train.log\n"
    ),
    "torchrun-on-each-node": Script(
        text=_HEAD
        + "source env.sh\n"
        + _FIRST
        + "for i in 0 1; do\n  srun -N1 -n1 -w ${nodes[$i]} torchrun --nnodes=2 --nproc_per_node=2 --node_rank=$i "
        "--master_addr=$MASTER_ADDR train.py &\ndone\nwait\n",
        # `wait` without a number forgets the codes.
        code=0,
    ),
    "worker-file": Script(
        text=_HEAD + "export DATA_DIR=/data/set\n" + _FIRST + "srun ./worker.sh --seed 3\n",
        files={
            "worker.sh": "#!/bin/bash\nsource env.sh\nexport NCCL_DEBUG=INFO\nexec torchrun --nnodes=2 --nproc_per_node=2 "
            '--node_rank=$SLURM_PROCID --master_addr=$MASTER_ADDR train.py "$@"\n'
        },
    ),
    "modules": Script(
        text=_TWO_RANKS + "#SBATCH -J Modules\nmodule load tools/1.2\nexport LR=0.1\nexport RATE=$LR.5\n"
        "srun --cpu-bind=none python3 -u train.py --epochs 3\n"
    ),
    "requeue-trap": Script(
        text=_TWO_RANKS + "#SBATCH --signal=B:USR1@60 --requeue --open-mode=append\n"
        "trap 'scontrol requeue $SLURM_JOB_ID' USR1\nsrun python3 train.py &\nwait $!\n"
    ),
    "stage-and-copy": Script(
        text=_TWO_RANKS
        + 'OUT=copied\nsrun --ntasks-per-node=1 --ntasks=2 bash -c "mkdir -p staged && touch staged/set"\n'
        "srun python3 train.py --data staged/set\nrc=$?\ncp -r out $OUT\nexit $rc\n",
        left=("copied/seen-0.json", "staged/set"),
    ),
    "one-process": Script(
        text="#!/bin/bash\n#SBATCH --ntasks=1 --cpus-per-task=2 --time=30 --export=ALL,LR=3\n"
        'cat > config.json <<EOF\n{"a": 1}\nEOF\npython3 train.py --config config.json\n',
        ranks=1,
        left=("config.json",),
    ),
}

# Writes what it sees, then does what the file `mode` says. Nothing of Slurm's or torch's own is imported.
PROGRAM = """\
import json, os, pathlib, signal, sys, time
env = dict(os.environ)
rank, local = (int(env.get(a, env.get(b, 0))) for a, b in (("RANK", "SLURM_PROCID"), ("LOCAL_RANK", "SLURM_LOCALID")))
world = int(env.get("WORLD_SIZE", env.get("SLURM_NTASKS", 1)))
mode, out = pathlib.Path("mode").read_text(), pathlib.Path("out")
out.mkdir(exist_ok=True)
def save(number, frame):
    (out / f"saved-{rank}").write_text(f"the state of rank {rank} of {world}")
    # With 0 a run of the kit would be done, and not go back to the queue.
    sys.exit(128 + number)
if mode == "wait":
    for name in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(name, save)
seen = {"argv": sys.argv[1:], "rank": [rank, world, local], "env": env, "node": env["SLURMD_NODENAME"]}
(out / f"new-{rank}").write_text(json.dumps(seen))
(out / f"new-{rank}").rename(out / f"seen-{rank}.json")
while len(list(out.glob("seen-*.json"))) < world:
    time.sleep(0.1)
while mode == "wait" and not int(env.get("SLURM_RESTART_COUNT", 0)):
    time.sleep(0.1)
sys.exit(5 if rank == world - 1 and mode == "fail" else 0)
"""
# torchrun as far as the scripts need it, given by their own options or by the kit's.
TORCHRUN = """\
#!/usr/bin/env python3
import os, subprocess, sys
words, given = sys.argv[1:], {}
while words[0].startswith("--"):
    name, _, value = words.pop(0)[2:].partition("=")
    given[name.replace("_", "-")] = value
command = words if "no-python" in given else [sys.executable, *words]
node, each = int(given.get("node-rank", os.environ["SLURM_NODEID"])), int(given["nproc-per-node"])
own = {"WORLD_SIZE": int(given["nnodes"]) * each, "LOCAL_WORLD_SIZE": each, "GROUP_RANK": node}
started = []
for local in range(each):
    mine = {**own, "RANK": node * each + local, "LOCAL_RANK": local}
    started.append(subprocess.Popen(command, env={**os.environ, **{name: str(value) for name, value in mine.items()}}))
sys.exit(max(one.wait() for one in started))
"""
ENV = """export PATH="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/tools:$PATH" FROM_FILE=1\n"""
# A function of the site, as Lmod exports it into each shell.
MODULE = '() {  export LOADED="$2"; export LD_LIBRARY_PATH=/opt/tools/lib\n}'
