#!/bin/bash
# Runs once per Slurm task, inside the container. Maps Slurm's variables to ranks and becomes the program.
# shellcheck source-path=SCRIPTDIR source-path=SCRIPTDIR/../.. disable=SC2034

# The folder of this role's files in the run folder. A plain job has one role, whose files are in the run folder itself.
readonly KIT_FOLDER=''
readonly KIT_SHAPE=torchrun
readonly KIT_AS_TORCHRUN=0
readonly KIT_RENDEZVOUS=c10d
readonly KIT_NNODES=2
readonly KIT_RANKS_PER_NODE=2
readonly KIT_CPUS_PER_RANK=24
readonly KIT_PYTHON=python3
readonly KIT_MAX_RESTARTS=0
readonly -a KIT_TORCHRUN_OPTIONS=(
    --local-ranks-filter=0
    --tee=3
    --log-dir=/kit/run/logs/torchrun
)
readonly KIT_WORKDIR=/workspace
readonly KIT_CACHE_DIR=/kit/cache
export KIT_SEED=1234

# Below this line nothing is generated.
set -euo pipefail

# Always started by its absolute path. This line runs on every rank, so it starts no process.
readonly KIT_OWN_DIR="${BASH_SOURCE[0]%/*}"
readonly KIT_RUN_DIR="${KIT_OWN_DIR%"/${KIT_FOLDER}"}"
export KIT_PROGRAM_FILE="${KIT_PROGRAM_FILE:-${KIT_FOLDER:+${KIT_FOLDER}/}program.sh}"
source "${KIT_RUN_DIR}/lib/clock.sh"
source "${KIT_RUN_DIR}/lib/log.sh"
source "${KIT_RUN_DIR}/lib/debug.sh"
source "${KIT_RUN_DIR}/lib/rank_variables.sh"
source "${KIT_RUN_DIR}/lib/cache_folders.sh"
source "${KIT_RUN_DIR}/lib/failures.sh"
source "${KIT_RUN_DIR}/lib/orphans.sh"
source "${KIT_OWN_DIR}/image-env.sh"
# shellcheck source=/dev/null
source "${KIT_RUN_DIR}/${KIT_PROGRAM_FILE}"
# shellcheck source=/dev/null
[[ -z "${KIT_WARM_SERVER:-}" ]] || source "${KIT_RUN_DIR}/lib/warm_ranks.sh"

# What every rank of this task sees, beside the variables of its own.
export_variables() {
    export KIT_RUN_DIR KIT_CHECKPOINT_DIR="${KIT_RUN_DIR}/checkpoints"
    export KIT_NNODES KIT_RANKS_PER_NODE
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-${KIT_CPUS_PER_RANK}}"
    export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1 PYTHONNOUSERSITE=1
    export PYTHONPATH="${KIT_RUN_DIR}/code"
}

main() {
    # Pyxis passes it on from the step, where it is for Enroot.
    unset BASH_ENV
    [[ -z "${KIT_WARM_SERVER:-}" ]] || warm_ranks::keep_reports
    rank_variables::require_slurm
    take_pmi
    export_variables
    cache_folders::point_at "${KIT_CACHE_DIR}" "${KIT_IMAGE_SHORT}"
    debug::frameworks
    # shellcheck source=/dev/null
    if [[ -n "${KIT_ROLE:-}" ]]; then
        export KIT_ROLES_FILE="${KIT_RUN_DIR}/state/roles.json"
        source "${KIT_RUN_DIR}/lib/role_gpus.sh"
        role_gpus::choose "${KIT_GPUS:-}"
        source "${KIT_RUN_DIR}/lib/placeholders.sh"
        placeholders::all KIT_PROGRAM_ENV
    fi
    cd -- "${KIT_WORKDIR}"
    ulimit -S -n hard 2>/dev/null || true # a rank connects to every other one; set-up lines may lower it again
    set_up
    [[ -z "${KIT_WARM_SERVER:-}" ]] || warm_ranks::serve
    orphans::watch "$(first_rank)"

    case "${KIT_SHAPE}" in
        srun)
            rank_variables::from_slurm
            ((!KIT_AS_TORCHRUN)) || rank_variables::as_torchrun
            exec "${KIT_RUN_DIR}/bin/rank.sh"
            ;;
        torchrun)
            rank_variables::node_from_slurm
            rank_variables::torchrun_argv
            # Output that torchrun has to show or write must go through torchrun: torchrun-rank.sh.
            export KIT_TORCHRUN_LOGS="${#KIT_TORCHRUN_OPTIONS[@]}"
            # torchrun handles TERM, but USR1 kills it and its ranks. A signal that is ignored at its start stays ignored, and
            # unignore.sh gives the ranks their signals back.
            trap '' USR1 USR2
            exec env -- "${KIT_PROGRAM_ENV[@]}" "${KIT_TORCHRUN_ARGV[@]}" --no-python "${KIT_RUN_DIR}/bin/unignore.sh" "${KIT_RUN_DIR}/bin/${KIT_TORCHRUN_OPTIONS[0]:+torchrun-}rank.sh"
            ;;
    esac
}

# Moves PMI2's file from standard input, as which enroot.sh passes it, before a program could read from it.
take_pmi() {
    [[ -n "${KIT_PMI_IS_STDIN:-}" ]] || return 0
    exec {PMI_FD}<&0 </dev/null
    export PMI_FD
    unset KIT_PMI_IS_STDIN
}

# Prints the first of the ranks that this task starts.
first_rank() {
    local -i each=1
    [[ "${KIT_SHAPE}" == srun ]] || each="${KIT_RANKS_PER_NODE}"
    printf '%d' $((SLURM_PROCID * each))
}

# Runs before the launcher is searched, because a set-up line may install it. Runs once per task: torchrun's ranks inherit what it
# exports.
set_up() {
    # Exported by a builtin: on the command line of env(1), every user's `ps` could read them.
    if [[ -r "${KIT_RUN_DIR}/.secrets" ]]; then
        # shellcheck source=/dev/null
        source "${KIT_RUN_DIR}/.secrets"
    fi
    [[ -s "${KIT_RUN_DIR}/setup.sh" ]] || return 0
    source "${KIT_RUN_DIR}/lib/setup_lines.sh"
    set +eu
    if ! setup_lines::run "${KIT_RUN_DIR}/setup.sh"; then
        local rank
        if [[ -n "${KIT_WARM_SERVER:-}" ]]; then
            # The ranks run the same lines, and record it.
            log::error "set-up ${setup_lines_said}"
            exit "${setup_lines_failed_code}"
        fi
        rank="$(first_rank)"
        log::error "set-up ${setup_lines_said}"
        log::error "set-up ${setup_lines_said}" 2>>"${KIT_RUN_DIR}/logs${KIT_ROLE:+/${KIT_ROLE}}/rank-${rank}.log"
        failures::record "${rank}" "${setup_lines_failed_code}"
        exit "${setup_lines_failed_code}"
    fi
    set -eu
}

main "$@"
