#!/bin/bash
# Who a run of prime-rl is: all roles say the same, and say it again after a requeue. Trainer and orchestrator then log to one run of W&B.

identity::export() {
    export PRL_RUN_ID="${PRL_RUN_ID:-${SLURM_CLUSTER_NAME:-slurm}-${SLURM_JOB_ID}}"
    # The second name is 0.8.0's.
    export WANDB_RUN_ID="${WANDB_RUN_ID:-${PRL_RUN_ID}}" WANDB_SHARED_RUN_ID="${WANDB_SHARED_RUN_ID:-${PRL_RUN_ID}}"
}
