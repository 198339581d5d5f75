"""Forms of sbatch scripts as people write them, each with its outcome and some keys of its job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

_TORCHRUN_HEAD = """#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:4
#SBATCH --cpus-per-task=16
#SBATCH --time=02:00:00
"""
_RANKS_HEAD = """#!/bin/bash
#SBATCH -J ranks
#SBATCH -N 2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH -c 4
#SBATCH -t 30
"""
_ONE_HEAD = """#!/bin/bash
#SBATCH --job-name=one
#SBATCH --gpus=1
#SBATCH --time=10
"""
_ADDRESS = """nodes=( $(scontrol show hostnames "$SLURM_JOB_NODELIST") )
export MASTER_ADDR=${nodes[0]}
export MASTER_PORT=29500
"""


@dataclass(frozen=True, kw_only=True)
class Form:
    """A script, its outcome, and keys that its job has. files: further files beside it. reason: in the report of a refused one."""

    script: str
    outcome: str = "whole"
    keys: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    reason: str = ""


def _torchrun(body: str, **more: Any) -> Form:
    keys = {"launcher": "torchrun", "script": "train.py", "resources.nodes": 2, "resources.ranks_per_node": 4}
    return Form(script=_TORCHRUN_HEAD + body, **{**more, "keys": {**keys, **more.get("keys", {})}})


def _ranks(body: str, **more: Any) -> Form:
    keys = {"launcher": "srun", "resources.nodes": 2, "resources.ranks_per_node": 4, "resources.cpus_per_node": 16}
    return Form(script=_RANKS_HEAD + body, **{**more, "keys": {**keys, **more.get("keys", {})}})


def _refused(body: str, reason: str, head: str = _TORCHRUN_HEAD) -> Form:
    return Form(script=head + body, outcome="refused", reason=reason)


FORMS: dict[str, Form] = {
    "torchrun-hostnames": _torchrun(
        _ADDRESS + "srun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d "
        "--rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT train.py --lr 0.1\n",
        keys={"args": ["--lr", "0.1"], "rendezvous": "c10d"},
    ),
    "torchrun-head-ip": _torchrun(
        'head_node_ip=$(srun --nodes=1 --ntasks=1 -w "$head" hostname --ip-address)\n'
        "srun torchrun --nnodes $SLURM_NNODES --nproc_per_node gpu --rdzv_id $RANDOM --rdzv_backend c10d "
        "--rdzv_endpoint $head_node_ip:29500 train.py\n"
    ),
    "torch-distributed-run": _torchrun(
        "GPUS=4\nsrun python -m torch.distributed.run --nproc_per_node $GPUS --nnodes $SLURM_NNODES train.py\n"
    ),
    "torchrun-module": Form(
        script=_TORCHRUN_HEAD + "srun torchrun --nproc-per-node=4 --nnodes=2 -m pack.train --steps 3\n",
        keys={"launcher": "torchrun", "module": "pack.train", "args": ["--steps", "3"]},
    ),
    "torchrun-max-restarts": _torchrun(
        "srun torchrun --max_restarts=3 --nproc_per_node=4 --nnodes=2 train.py\n", keys={"torchrun.max_restarts": 3}
    ),
    "torchrun-standalone": Form(
        script=_ONE_HEAD + "torchrun --standalone --nproc_per_node=1 train.py\n",
        keys={"launcher": "torchrun", "resources.nodes": 1, "resources.ranks_per_node": 1},
    ),
    "torchrun-bash-c": _torchrun(
        "srun bash -c 'torchrun --nnodes=2 --nproc_per_node=4 --node_rank=$SLURM_NODEID "
        "--master_addr=$MASTER_ADDR train.py --seed 1'\n",
        keys={"args": ["--seed", "1"]},
    ),
    "torchrun-worker-file": _torchrun(
        _ADDRESS + "srun ./worker.sh\n",
        files={
            "worker.sh": "#!/bin/bash\nexport NCCL_DEBUG=INFO\nexec torchrun --nnodes=2 --nproc_per_node=4 "
            "--node_rank=$SLURM_PROCID --master_addr=$MASTER_ADDR train.py\n"
        },
        keys={"env.NCCL_DEBUG": "INFO"},
    ),
    "torchrun-worker-with-set-up": _torchrun(
        "export LR=1\nsrun ./worker.sh\n",
        files={
            "worker.sh": "#!/bin/bash\nmodule load cuda\nexport BS=2\nsource env.sh\nexport WORKERS=3\nexec torchrun --nnodes=2 "
            "--nproc_per_node=4 train.py\n",
            "env.sh": "export BS=9 FROM_FILE=1\n",
        },
        keys={
            "setup": ["export LR=1", "module load cuda", "export BS=2", "source env.sh"],
            "env": {"WORKERS": "3"},
        },
    ),
    "torchrun-loop-over-nodes": _torchrun(
        _ADDRESS + "for i in 0 1; do\n  srun -N1 -n1 -w ${nodes[$i]} torchrun --nnodes=2 --nproc_per_node=4 "
        "--node_rank=$i --master_addr=$MASTER_ADDR train.py &\ndone\nwait\n"
    ),
    "torchrun-tee": _torchrun("srun torchrun --nnodes=2 --nproc_per_node=4 train.py 2>&1 | tee train.log\n"),
    "srun-python": _ranks(
        "srun python -u train.py --epochs 3\n", keys={"script": "train.py", "args": ["--epochs", "3"]}
    ),
    "srun-address": _ranks(
        _ADDRESS
        + "export WORLD_SIZE=$(($SLURM_NNODES * $SLURM_NTASKS_PER_NODE))\nsrun --kill-on-bad-exit=1 python train.py\n"
    ),
    "srun-module": _ranks("srun python -m pack.train\n", keys={"module": "pack.train"}),
    "srun-cpu-bind": _ranks(
        "srun --cpu-bind=cores -l python train.py\n", keys={"step.cpu_bind": "cores", "step.label": True}
    ),
    "srun-hint": _ranks("srun --hint=nomultithread python train.py\n", keys={"step.extra": ["--hint=nomultithread"]}),
    "srun-mpi-program": _ranks(
        "srun --mpi=pmix ./solver --size 10\n", keys={"step.mpi": "pmix", "command": ["./solver", "--size", "10"]}
    ),
    "srun-bash-c-ranks": _ranks(
        'srun bash -c "RANK=\\$SLURM_PROCID python train.py"\n',
        keys={"command": ["bash", "-c", "RANK=$SLURM_PROCID python train.py"]},
    ),
    "srun-worker-unchanged": _ranks(
        "srun bash worker.sh --lr 1\n",
        files={"worker.sh": "export RANK=$SLURM_PROCID\npython train.py $@\n"},
        keys={"command": ["bash", "worker.sh", "--lr", "1"]},
    ),
    "ntasks-total": Form(
        script="#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks=8\nsrun python train.py\n",
        keys={"resources.ranks_per_node": 4, "resources.nodes": 2, "resources.gpus_per_node": 0},
    ),
    "gpus-per-task": Form(
        script="#!/bin/bash\n#SBATCH -N2 -n8\n#SBATCH --gpus-per-task=1\n#SBATCH --mem-per-gpu=8G\nsrun python train.py\n",
        keys={"resources.gpus_per_node": 4, "resources.memory": "32G"},
    ),
    "mem-per-cpu": Form(
        script="#!/bin/bash\n#SBATCH -c 8\n#SBATCH --mem-per-cpu=2G\npython train.py\n",
        keys={"launcher": "python", "resources.memory": "16G", "resources.cpus_per_node": 8},
    ),
    "two-gres": Form(
        script="#!/bin/bash\n#SBATCH --gres=gpu:a100:2,nvme:1\npython train.py\n",
        keys={"resources.gpu_type": "a100", "resources.gpus_per_node": 2, "resources.gres": {"nvme": 1}},
    ),
    "header-options": Form(
        script="#!/bin/bash\n#SBATCH -A team -p gpu -q high -C h100 --exclusive\n#SBATCH --mail-type=END,FAIL --mail-user=a@b.org\n"
        "#SBATCH -o logs/%x-%j.out\n#SBATCH --nice=10\npython train.py\n",
        keys={
            "slurm.account": "team",
            "slurm.partition": "gpu",
            "slurm.qos": "high",
            "slurm.constraint": "h100",
            "slurm.exclusive": True,
            "slurm.mail_type": "END,FAIL",
            "slurm.output": "logs/%x-%j.out",
            "slurm.extra": ["--nice=10"],
        },
    ),
    "modules": _torchrun(
        "module purge\nmodule load cuda/12.4\nsrun torchrun --nnodes=2 --nproc_per_node=4 train.py\n",
        keys={"setup": ["module purge", "module load cuda/12.4"]},
    ),
    "conda": _ranks(
        'eval "$(conda shell.bash hook)"\nconda activate env\nsrun python train.py\n',
        keys={"setup": ['eval "$(conda shell.bash hook)"', "conda activate env"]},
    ),
    "virtual-environment": _ranks(
        "source venv/bin/activate\nsrun python train.py\n", keys={"setup": ["source venv/bin/activate"]}
    ),
    "exports": _ranks(
        'export A=1 B="two words"\nexport C="$A-${A}"\nsrun python train.py\n',
        keys={"env.A": "1", "env.B": "two words", "env.C": "1-1"},
    ),
    "export-later": _ranks(
        "LR=0.1\nexport LR\nsrun python train.py --lr $LR\n", keys={"env.LR": "0.1", "args": ["--lr", "0.1"]}
    ),
    "path": _ranks(
        "TOOL=/opt/tool\nexport PATH=$TOOL/bin:$PATH\nsrun python train.py\n",
        keys={"setup": ["TOOL=/opt/tool", "export PATH=$TOOL/bin:$PATH"]},
    ),
    "scratch": _ranks(
        "export OUT=$SCRATCH/$SLURM_JOB_ID\nsrun python train.py\n",
        keys={"inherit": ["SCRATCH"], "setup": ["export OUT=$SCRATCH/$SLURM_JOB_ID"]},
    ),
    "arithmetic": _ranks(
        "B=32\nsrun python train.py --batch $((B * SLURM_NTASKS))\n", keys={"args": ["--batch", "256"]}
    ),
    "prepare": _ranks(
        "mkdir -p data\ncp -r /data/set data/\nsrun python train.py\n",
        keys={"once.lines": ["mkdir -p data", "cp -r /data/set data/"], "once.container": False},
    ),
    "here-document": _ranks(
        'cat > config.json <<EOF\n{"a": 1}\nEOF\nsrun python train.py\n',
        keys={"once.lines": ["cat > config.json <<EOF", '{"a": 1}', "EOF"]},
    ),
    "requeue-trap": _torchrun(
        "#SBATCH --signal=B:USR1@180\n#SBATCH --requeue\ntrap 'scontrol requeue $SLURM_JOB_ID' USR1\n"
        "srun torchrun --nnodes=2 --nproc_per_node=4 train.py &\nwait\n",
        outcome="workaround",
        reason="CHECK: ranks that end with 0 after the signal count as done",
        keys={"slurm.signal": "USR1@180", "slurm.requeue": True, "retry.requeue": 100},
    ),
    "requeue-function": _torchrun(
        "#SBATCH --signal=USR2@60\nagain() {\n  scontrol requeue $SLURM_JOB_ID\n}\ntrap again USR2\n"
        "srun torchrun --nnodes=2 --nproc_per_node=4 train.py &\nwait\n",
        outcome="workaround",
        keys={"slurm.signal": "USR2@60", "retry.requeue": 100},
    ),
    "late-sbatch-line": _ranks("echo begin\n#SBATCH --mem=1G\nsrun python train.py\n"),
    "accelerate": Form(
        script=_TORCHRUN_HEAD + _ADDRESS + "srun accelerate launch --multi_gpu --num_machines 2 --num_processes 8 "
        "--machine_rank $SLURM_PROCID --main_process_ip $MASTER_ADDR --mixed_precision bf16 train.py --a 1\n",
        keys={"launcher": "accelerate", "env.ACCELERATE_MIXED_PRECISION": "bf16", "resources.ranks_per_node": 4},
    ),
    "deepspeed-one-node": Form(
        script=_ONE_HEAD + "deepspeed --num_gpus=1 train.py --deepspeed_config ds.json\n",
        keys={
            "launcher": "deepspeed",
            "args": ["--deepspeed_config", "ds.json"],
            "rank_args": {"--local_rank": "LOCAL_RANK"},
        },
    ),
    "pyxis": _ranks(
        "srun --container-image=nvcr.io/nvidia/pytorch:24.05-py3 --container-mounts=/data:/data:ro,/w python train.py\n",
        keys={
            "image": "pytorch-24.05-py3",
            "mounts": [{"source": "/data", "target": "/data", "flags": ["ro"]}, {"source": "/w", "target": "/w"}],
        },
    ),
    "pyxis-file": _ranks(
        "srun --container-image=/images/base.sqsh --container-workdir=/work --container-writable python train.py\n",
        keys={"image": "base", "workdir": "/work", "container.writable": True},
    ),
    "secret": _ranks(
        "export HF_TOKEN=abcdef\nsrun python train.py\n", outcome="workaround", keys={"secrets.env": ["HF_TOKEN"]}
    ),
    "variable-in-header": _refused("", "does not expand", "#!/bin/bash\n#SBATCH --nodes=$N\npython train.py\n"),
    "array": _refused(
        "python train.py --seed $SLURM_ARRAY_TASK_ID\n", "kit sweep", _ONE_HEAD + "#SBATCH --array=0-3\n"
    ),
    "dependency": _refused("python train.py\n", "kit submit --after", _ONE_HEAD + "#SBATCH --dependency=afterok:1\n"),
    "heterogeneous": _refused("#SBATCH hetjob\n#SBATCH -N1\nsrun python train.py\n", "heterogeneous"),
    "two-steps": _refused("srun python a.py &\nsrun python b.py &\nwait\n", "2 programs"),
    "program-in-a-condition": _refused("if [ -e x ]; then srun python train.py; fi\n", "a condition"),
    "date": _refused("STAMP=$(date +%s)\nsrun python train.py --name $STAMP\n", "known only when"),
    "unset-argument": _refused("srun python train.py $EXTRA\n", "after 'train.py'", _RANKS_HEAD),
    "after-the-ranks": _ranks(
        "srun python train.py\ncp -r out /archive\n",
        keys={"after": {"lines": ["cp -r out /archive"], "container": False}},
    ),
    "after-with-code": _ranks(
        "OUT=/archive\nsrun python train.py\nrc=$?\ncp -r out $OUT\nif [ $rc -ne 0 ]; then echo bad; fi\nexit $rc\n",
        keys={"after.lines": ["rc=${KIT_EXIT_CODE}", "OUT=/archive", "cp -r out $OUT"]},
    ),
    "after-a-success": _ranks(
        "set -e\nsrun python train.py\ntouch done\n",
        keys={"after.lines": ['[[ "${KIT_EXIT_CODE}" == 0 ]] || exit 0', "touch done"]},
    ),
    "and-then": _ranks(
        "srun python train.py && touch done\n",
        keys={"after.lines": ["if (( KIT_EXIT_CODE == 0 )); then touch done; fi"]},
    ),
    "or-exit": _ranks("srun python train.py || exit 1\n", keys={"script": "train.py"}),
    "trap-at-exit": _ranks(
        "trap 'rm -rf /tmp/mine' EXIT\nsrun python train.py\n", keys={"after.lines": ["rm -rf /tmp/mine"]}
    ),
    "per-node": _ranks(
        'DATA=/data/set\nsrun --ntasks-per-node=1 bash -c "mkdir -p /tmp/set && cp -r $DATA /tmp/set"\nsrun python train.py\n',
        keys={"per_node.lines": ["mkdir -p /tmp/set && cp -r /data/set /tmp/set"], "per_node.container": False},
    ),
    "per-node-plain": _ranks(
        "srun -N 2 --ntasks=2 rsync -a /data/set /tmp\nsrun -n 8 python train.py\n",
        keys={"per_node.lines": ["rsync -a /data/set /tmp"], "resources.ranks_per_node": 4},
    ),
    # (a) Options of srun whose value is not the kit's.
    "srun-keeps-ranks": _ranks(
        "srun --kill-on-bad-exit=0 python train.py\n", outcome="workaround", reason="CHECK: srun --kill-on-bad-exit=0"
    ),
    "srun-wait": _ranks("srun --wait=60 python train.py\n", reason="by the kit: srun --wait=60"),
    "srun-fewer-cpus": _ranks(
        "srun --cpus-per-task=2 python train.py\n", outcome="workaround", reason="CHECK: srun --cpus-per-task=2"
    ),
    "srun-fewer-gpus": _ranks(
        "srun --gres=gpu:2 python train.py\n", outcome="workaround", reason="CHECK: srun --gres=gpu:2"
    ),
    "srun-same-gpus": _ranks(
        "srun --gres=gpu:4 --mem=0 python train.py\n", outcome="workaround", reason="CHECK: srun --mem=0"
    ),
    "srun-export": _ranks("srun --export=ALL,LR=3 python train.py\n", keys={"env.LR": "3"}),
    "srun-output": _ranks("srun --output=out-%t.txt python train.py > all.txt 2>&1\n", reason="by the kit: > all.txt"),
    "export-in-header": Form(
        script=_RANKS_HEAD + "#SBATCH --export=ALL,LR=3,DATA\nsrun python train.py\n",
        outcome="workaround",
        reason="CHECK: --export=ALL,LR=3,DATA: the ranks get no variables of your login",
        keys={"env.LR": "3", "inherit": ["DATA"]},
    ),
    "said-twice": Form(
        script=_RANKS_HEAD + "#SBATCH --ntasks-per-node=2\nsrun python train.py\n", keys={"resources.ranks_per_node": 2}
    ),
    "signal-without-lead": Form(
        script=_RANKS_HEAD + "#SBATCH --signal=TERM\nsrun python train.py\n", keys={"slurm.signal": "TERM@60"}
    ),
    # (b) Constants that lines read.
    "prepare-a-folder": _ranks(
        "OUT=/data/out\nmkdir -p $OUT\nsrun python train.py\n", keys={"once.lines": ["OUT=/data/out", "mkdir -p $OUT"]}
    ),
    "prepare-twice": _ranks(
        "export D=/a\nmkdir -p $D\nexport D=/b\nmkdir -p $D\nsrun python train.py\n",
        keys={"env.D": "/b", "once.lines": ["export D=/a", "mkdir -p $D", "mkdir -p $D"]},
    ),
    "source-from-a-constant": _ranks(
        "export TOOLS=/opt/tools\nsource $TOOLS/env.sh\nsrun python train.py\n",
        keys={"setup": ["export TOOLS=/opt/tools", "source $TOOLS/env.sh"]},
    ),
    "module-wins": _ranks(
        "export LR=1\nmodule load tools\nexport BS=2\nsrun python train.py\n",
        keys={"setup": ["export LR=1", "module load tools"], "env": {"BS": "2"}},
    ),
    "source-in-a-condition": _ranks(
        "if [ -f env.sh ]; then source env.sh; fi\nsrun python train.py\n",
        keys={"setup": ["if [ -f env.sh ]; then source env.sh; fi"]},
    ),
    "source-after-an-export": _ranks(
        "export LR=1\nsource env.sh\nsrun python train.py\n", keys={"setup": ["export LR=1", "source env.sh"]}
    ),
    "source-before-an-export": _ranks("source env.sh\nexport LR=1\nsrun python train.py\n", keys={"env.LR": "1"}),
    "source-between-exports": _ranks(
        "export LR=1\nsource env.sh\nexport LR=2\nmodule load a\nexport BS=3\nsrun python train.py\n"
    ),
    "source-sets-what-is-read": _ranks(
        "export LR=1\nsource env.sh\nexport RATE=$LR.5\nsrun python train.py\n",
        files={"env.sh": "export LR=9 FROM_FILE=1\n"},
        keys={"setup": ["export LR=1", "source env.sh", "export RATE=$LR.5"]},
    ),
    "source-sets-a-word": Form(
        script=_RANKS_HEAD + "LR=1\nsource env.sh\nsrun python train.py --lr $LR\n",
        files={"env.sh": "LR=9\n"},
        outcome="refused",
        reason="$LR, after '--lr', is known only when",
    ),
    "module-may-set-a-word": _ranks(
        "LR=1\nmodule load tools\nsrun python train.py --lr $LR\n",
        reason="$LR has the value that the script gives it before",
    ),
    "unset-after-source": _ranks(
        "source env.sh\nunset LR\nsrun python train.py\n", keys={"setup": ["source env.sh", "unset LR"]}
    ),
    "set-a-around-source": _ranks("set -a\nsource env.sh\nset +a\nsrun python train.py\n"),
    "set-a": _ranks("set -a\nLR=3\nset +a\nsrun python train.py\n", keys={"env.LR": "3"}),
    "unset": _ranks("export LR=3\nunset LR\nsrun python train.py\n", keys={"setup": ["unset LR"]}),
    "stop-without-data": _ranks(
        "if [ ! -d data ]; then echo none; exit 1; fi\nsrun python train.py\n",
        keys={"once.lines": ["if [ ! -d data ]; then echo none; exit 1; fi"]},
    ),
    "env-starts-a-program": _ranks(
        "env LR=1 python prepare.py\nsrun python train.py\n", keys={"once.lines": ["env LR=1 python prepare.py"]}
    ),
    "cd": _ranks(
        "cd code\nsource env.sh\nsrun python train.py\n",
        keys={"setup": ["cd code", "source env.sh"], "script": "code/train.py"},
        files={"code/train.py": ""},
    ),
    "cd-after-prepare": _ranks(
        "mkdir -p out\ncd /proj\ntouch started\nsrun python train.py\n",
        keys={
            "setup": ["cd /proj"],
            "script": "/proj/train.py",
            "once.lines": ['cd "$OLDPWD"', "mkdir -p out", "cd /proj", "touch started"],
        },
    ),
    # (c) Names that sound like a rendezvous.
    "head-size": _ranks(
        "export HEAD_DIM=64\nexport MASTER_WEIGHTS=fp32\nexport NODES=a\nmain_lr=3\nsrun python train.py --lr $main_lr\n",
        keys={"env": {"HEAD_DIM": "64", "MASTER_WEIGHTS": "fp32", "NODES": "a"}, "args": ["--lr", "3"]},
    ),
    "other-names": _torchrun(
        "LIST=$(scontrol show hostnames $SLURM_JOB_NODELIST)\nFIRST=$(echo $LIST | cut -d' ' -f1)\nP=$((20000 + RANDOM % 1000))\n"
        "N=$(scontrol show hostnames $SLURM_JOB_NODELIST | wc -l)\n"
        "srun torchrun --nnodes=$N --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=$FIRST:$P train.py\n",
        keys={"rendezvous": "c10d"},
    ),
    "exported-node": _ranks(
        "export FIRST=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)\nsrun python train.py\n",
        outcome="workaround",
        reason="the ranks do not get FIRST",
    ),
    "world-of-nodes": _ranks(
        "export WORLD_SIZE=2\nsrun python train.py\n",
        outcome="workaround",
        reason="WORLD_SIZE=2 in the script; the kit's value is 8",
    ),
    "each-node-alone": _refused("srun torchrun --nproc_per_node=4 train.py\n", "each of them would train alone"),
    "fewer-nodes": _refused("srun torchrun --nnodes=1 --nproc_per_node=4 train.py\n", "--nnodes=1: the job has 2"),
    "endpoint-of-each-node": _refused(
        "srun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_endpoint=localhost:1 train.py\n", "would train alone"
    ),
    "rdzv-conf": _torchrun(
        "srun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_conf=timeout=900 train.py\n",
        outcome="workaround",
        reason="CHECK: --rdzv_conf=timeout=900",
    ),
    # Words that variables hold.
    "args-in-an-array": _ranks(
        'ARGS=(--lr 0.1)\nARGS+=(--name "two words")\nsrun python train.py "${ARGS[@]}" --x\n',
        keys={"args": ["--lr", "0.1", "--name", "two words", "--x"]},
    ),
    "args-in-a-string": _ranks(
        'ARGS="--lr 0.1"\nARGS+=" --bs 3"\nsrun python train.py $ARGS\n', keys={"args": ["--lr", "0.1", "--bs", "3"]}
    ),
    "launcher-in-a-string": _torchrun(
        _ADDRESS + 'LAUNCHER="python -m torch.distributed.run --nproc_per_node 4 --nnodes $SLURM_NNODES '
        '--rdzv_endpoint $MASTER_ADDR:$MASTER_PORT"\nPROGRAM="train.py --seed 1"\n'
        'srun --jobid $SLURM_JOB_ID bash -c "$LAUNCHER --node_rank \\$SLURM_PROCID $PROGRAM" 2>&1 | tee -a log.txt\n',
        keys={"args": ["--seed", "1"], "python": "python"},
    ),
    "worker-with-words": _torchrun(
        "srun worker.sh --lr 3\n",
        files={"worker.sh": '#!/bin/bash\ntorchrun --nnodes=2 --nproc_per_node=4 train.py "$@"\n'},
        keys={"args": ["--lr", "3"]},
    ),
    "words-after-the-script": _ranks('srun python train.py "$@"\n', outcome="workaround", reason="kit submit -- WORDS"),
    "home": _ranks("srun python train.py --data $HOME/data\n"),
    "python-options": _ranks("srun python -u -O train.py\n", keys={"env.PYTHONOPTIMIZE": "1"}),
    "python-without-a-suffix": _ranks("srun python3 train\n", keys={"command": ["python3", "-u", "train"]}),
    "login-shell": Form(
        script=_RANKS_HEAD.replace("/bin/bash", "/bin/bash -l") + "srun python train.py\n",
        outcome="workaround",
        reason="without a login",
    ),
    "input-from-a-document": _refused("srun python train.py <<EOF\n1\nEOF\n", "have no input", _RANKS_HEAD),
    "output-through-a-filter": _refused(
        "srun python train.py | grep loss\n", "goes into no other program", _RANKS_HEAD
    ),
    "not-a-shell": _refused("", "reads scripts of bash", "#!/usr/bin/env python3\nimport os\n"),
    "two-kinds-of-gpus": _refused(
        "python train.py\n", "do not name the same GPUs", "#!/bin/bash\n#SBATCH --gres=gpu:2 --gpus-per-node=4\n"
    ),
    "sbatch-in-the-end": _refused("srun python train.py\nsbatch next.sh\n", "kit submit --after", _RANKS_HEAD),
    "secret-in-a-word": _refused(
        "TOKEN=abcdef\nsrun python train.py --token $TOKEN\n", "is known only when", _RANKS_HEAD
    ),
    "ray": _refused("ray start --head\npython train.py\n", "ray"),
    "singularity": _refused("srun singularity exec --nv a.sif python train.py\n", "singularity", _RANKS_HEAD),
    "chain": _refused("srun python train.py\nsbatch $0\n", "after the ranks", _RANKS_HEAD),
    "not-bash": _refused("srun python train.py\nif then ((\n", "no bash", _RANKS_HEAD),
}
