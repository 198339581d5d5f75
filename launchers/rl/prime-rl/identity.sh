#!/bin/bash
# The name of a prime-rl run, the same for all roles and after a requeue. With it, trainer and orchestrator log to one run of W&B.

identity::export() {
    export PRL_RUN_ID="${PRL_RUN_ID:-${SLURM_CLUSTER_NAME:-slurm}-${SLURM_JOB_ID}}"
    # prime-rl 0.8.0 reads the second variable.
    export WANDB_RUN_ID="${WANDB_RUN_ID:-${PRL_RUN_ID}}" WANDB_SHARED_RUN_ID="${WANDB_SHARED_RUN_ID:-${PRL_RUN_ID}}"
}
