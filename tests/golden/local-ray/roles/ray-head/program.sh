# The job's program, its arguments and its environment, unchanged to the byte. Read by worker.sh and rank.sh.
# shellcheck shell=bash disable=SC2034,SC2054
KIT_PROGRAM=(
    python3
    /shared/runs/digits-1/code/ray_node.py
    head
    --cpus=4
    --gpus=2
    --memory=68719476736
    --
    python3
    /home/ada/project/examples/ray/train.py
    --steps
    2000
)
KIT_PROGRAM_ENV=(
    RAY_USAGE_STATS_ENABLED=0
    OMP_NUM_THREADS=1
)
