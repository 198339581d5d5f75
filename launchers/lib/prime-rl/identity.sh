#!/bin/bash
# Sets the identity of a prime-rl run, the same in all roles and after a requeue, so that they log to one W&B run.

# identity::export FIRST: FIRST is the role that creates the W&B run. It also finishes the run, if no evals role does.
identity::export() {
    export PRL_RUN_ID="${PRL_RUN_ID:-${SLURM_CLUSTER_NAME:-slurm}-${SLURM_JOB_ID}}"
    export PRL_RUN_NAME="${PRL_RUN_NAME:-${PRL_RUN_ID}}"
    # A requeued job continues the same W&B run.
    export WANDB_RUN_ID="${WANDB_RUN_ID:-${PRL_RUN_ID}}" WANDB_RESUME="${WANDB_RESUME:-allow}"
    local -r last="${KIT_ROLE_EVALS_ADDR:+evals}"
    export WANDB_SHARED_PRIMARY="${WANDB_SHARED_PRIMARY:-$1}" WANDB_SHARED_FINISHER="${WANDB_SHARED_FINISHER:-${last:-$1}}"
}
