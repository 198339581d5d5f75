# shellcheck shell=bash
# Turns Slurm's variables into those of the frameworks. They are read here, in the task: expanded earlier, every rank would be rank
# 0. SLURM_TASKS_PER_NODE is never read, because its compressed form, `4(x2)`, is not a number.

rank_variables::require_slurm() {
    # For kit_rank: the time when the container was ready.
    clock::now KIT_WORKER_BEGAN
    export KIT_WORKER_BEGAN
    if [[ -z "${SLURM_PROCID:-}" || -z "${KIT_MASTER_ADDR:-}" ]]; then
        log::error "this script runs as a Slurm task, started by batch.sh"
        exit 2
    fi
    export TORCH_FR_BUFFER_SIZE="${TORCH_FR_BUFFER_SIZE:-2000}" # entries of torch's flight recorder: kit_recorder.py; gloo has one, too
    export MASTER_ADDR="${KIT_MASTER_ADDR}" MASTER_PORT="${KIT_MASTER_PORT}"
}

rank_variables::from_slurm() {
    export RANK="${SLURM_PROCID}" WORLD_SIZE="${SLURM_NTASKS}"
    export LOCAL_RANK="${SLURM_LOCALID}" LOCAL_WORLD_SIZE="${KIT_RANKS_PER_NODE}"
    rank_variables::set_node_rank
    [[ -z "${KIT_NODE_RANKS:-}" ]] || RANK=$((NODE_RANK * KIT_RANKS_PER_NODE + SLURM_LOCALID))
}

# Uses Slurm's own number of the node, unless `kit rerun --rotate` has moved the ranks (lib/nodes.sh).
rank_variables::set_node_rank() {
    local -a moved
    read -ra moved <<<"${KIT_NODE_RANKS:-}"
    export NODE_RANK="${moved[SLURM_NODEID]:-${SLURM_NODEID}}"
}

# Sets what torchrun gives its ranks, where the warm process of the node starts them in its place: rank 0 holds the store. A
# program with torch's @record writes its error to a file beside the record of its rank's end.
rank_variables::as_torchrun() {
    export GROUP_RANK="${NODE_RANK}" GROUP_WORLD_SIZE="${KIT_NNODES}"
    export ROLE_NAME=default ROLE_RANK="${RANK}" ROLE_WORLD_SIZE="${WORLD_SIZE}"
    export TORCHELASTIC_RUN_ID="${SLURM_JOB_ID}" TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_MAX_RESTARTS=0
    export TORCHELASTIC_USE_AGENT_STORE=False TORCHELASTIC_ERROR_FILE="${KIT_RUN_DIR}/state/${KIT_FAILURES:-}/error-${RANK}.json"
    export TORCH_NCCL_ASYNC_ERROR_HANDLING="${TORCH_NCCL_ASYNC_ERROR_HANDLING:-1}"
}

rank_variables::node_from_slurm() {
    # torchrun sets the ranks of its children itself. Values from Pyxis or an outer job would mislead it.
    unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK
    rank_variables::set_node_rank
}

rank_variables::torchrun_argv() {
    rank_variables::set_node_rank
    KIT_TORCHRUN_ARGV=(torchrun)
    if ! command -v torchrun >/dev/null; then
        KIT_TORCHRUN_ARGV=("${KIT_PYTHON}" -m torch.distributed.run)
    fi
    KIT_TORCHRUN_ARGV+=(--nnodes="${KIT_NNODES}" --nproc-per-node="${KIT_RANKS_PER_NODE}" --max-restarts="${KIT_MAX_RESTARTS}" "${KIT_TORCHRUN_OPTIONS[@]}")
    case "${KIT_RENDEZVOUS}" in
        static) # The node rank is given, so that rank 0 is on the node of MASTER_ADDR.
            KIT_TORCHRUN_ARGV+=(--node-rank="${NODE_RANK}" --master-addr="${MASTER_ADDR}" --master-port="${MASTER_PORT}")
            ;;
        c10d) # is_host names the holder of the store. Without it torch compares host names, which containers may share.
            KIT_TORCHRUN_ARGV+=(
                --rdzv-backend=c10d
                --rdzv-endpoint="${MASTER_ADDR}:${MASTER_PORT}"
                --rdzv-id="${SLURM_JOB_ID}.${KIT_RESTART_COUNT}"
                --rdzv-conf="is_host=$((NODE_RANK == 0))"
            )
            # By default the ranks meet in a store of torchrun that outlives a restart: restarted ranks would read the addresses of
            # the killed ones there. Without sharing, each start of the ranks has its own store.
            ((KIT_MAX_RESTARTS == 0)) || export TORCH_DISABLE_SHARE_RDZV_TCP_STORE="${TORCH_DISABLE_SHARE_RDZV_TCP_STORE:-1}"
            ;;
    esac
}
