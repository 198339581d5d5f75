#!/bin/bash
#SBATCH --job-name=digits
#SBATCH --account=research
#SBATCH --partition=gpu
#SBATCH --qos=normal
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=96
#SBATCH --mem=900G
#SBATCH --time=2-00:00:00
#SBATCH --output=/shared/runs/digits-1/logs/batch.log
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
#SBATCH --gres=gpu:2
#SBATCH --no-requeue
# 2 nodes x 2 ranks = world size 4; start shape torchrun: 1 tasks a node.
# CPUs: 96 a node, as asked; 96 a task, 48 a rank.
# shellcheck source-path=SCRIPTDIR disable=SC2034,SC2054

readonly KIT_RUN_DIR=/shared/runs/digits-1
readonly KIT_JOB_NAME=digits
readonly KIT_IMAGE=/lustre/shared/images/sha256/c0ffee0000000000000000000000000000000000000000000000000000000000.sqsh
readonly KIT_IMAGE_DIGEST=sha256:c0ffee0000000000000000000000000000000000000000000000000000000000
readonly KIT_RUNTIME=enroot
readonly KIT_NODES=2
readonly KIT_WORLD_SIZE=4
readonly KIT_DEBUG_DEFAULT=0
readonly KIT_HEARTBEAT=120
readonly KIT_MASTER_PORT_BASE=20000
readonly KIT_STEP=train
readonly -a KIT_STEP_ARGV=(
    srun
    --job-name=train
    --nodes=2
    --ntasks=2
    --ntasks-per-node=1
    --cpus-per-task=96
    --mpi=none
    --export=ALL
    --kill-on-bad-exit=1
    --wait=60
    --output=/shared/runs/digits-1/logs/task-%t.log
    --open-mode=append
    /shared/runs/digits-1/lib/enroot.sh
    --root
    --rc=/shared/runs/digits-1/lib/enroot-rc.sh
    --mount=/shared/runs/digits-1:/kit/run:x-create=auto,rbind
    --mount=/home/ada/project/examples/ddp:/workspace:x-create=auto,rbind
    --mount=/local/kit-ada:/kit/cache:x-create=auto,rbind
    /lustre/shared/images/sha256/c0ffee0000000000000000000000000000000000000000000000000000000000.sqsh
    /kit/run/lib/unignore.sh
    /kit/run/worker.sh
)
readonly -a KIT_MONITOR_ARGV=()
readonly -a KIT_PREFLIGHT_ARGV=(
    srun
    --job-name=kit-preflight
    --overlap
    --mem=0
    --nodes=2
    --ntasks=2
    --ntasks-per-node=1
    --cpus-per-task=1
    --mpi=none
    --export=ALL
    /shared/runs/digits-1/lib/preflight.sh
    /lustre/shared/images/sha256/c0ffee0000000000000000000000000000000000000000000000000000000000.sqsh
    /local/kit-ada
    /shared/runs/digits-1
    /home/ada/project/examples/ddp
)

# Told apart from every code that a program returns by convention: BSD's sysexits call it EX_OSFILE.
readonly KIT_PREFLIGHT_FAILED=72

# This script runs on the first node, outside any container.
# Below this line nothing is generated.
set -uo pipefail

source "${KIT_RUN_DIR}/lib/log.sh"
source "${KIT_RUN_DIR}/lib/debug.sh"
source "${KIT_RUN_DIR}/lib/nodes.sh"
source "${KIT_RUN_DIR}/lib/events.sh"
source "${KIT_RUN_DIR}/lib/heartbeat.sh"
source "${KIT_RUN_DIR}/lib/steps.sh"
source "${KIT_RUN_DIR}/lib/failures.sh"

# shellcheck disable=SC2317 # called by the EXIT trap
finish() {
    local -r code=$?
    trap - EXIT
    trap '' TERM USR1 INT HUP
    steps::end_all
    heartbeat::stop
    events::record end exit_code "${code}"
    log::info "end of job ${SLURM_JOB_ID}: exit code ${code}"
    exit "${code}"
}

main() {
    trap finish EXIT
    export KIT_RESTART_COUNT="${SLURM_RESTART_COUNT:-0}"
    debug::enable_if_asked "${DEBUG:-${KIT_DEBUG_DEFAULT}}"

    nodes::resolve || exit 1
    nodes::choose_port "${KIT_MASTER_PORT_BASE}" || exit 1
    nodes::banner
    events::record start nodes "${SLURM_JOB_NODELIST}" master "${KIT_MASTER_ADDR}:${KIT_MASTER_PORT}"

    trap 'steps::forward TERM "${KIT_STEP}"' TERM
    trap 'steps::forward USR1 "${KIT_STEP}"' USR1
    steps::start kit-preflight "${KIT_PREFLIGHT_ARGV[@]}"
    if ! steps::wait kit-preflight; then
        log::error "preflight failed on the nodes named above; no rank was started"
        exit "${KIT_PREFLIGHT_FAILED}"
    fi

    failures::prepare
    heartbeat::start "${KIT_HEARTBEAT}"
    if ((${#KIT_MONITOR_ARGV[@]})); then
        steps::start kit-monitor "${KIT_MONITOR_ARGV[@]}"
    fi

    steps::start "${KIT_STEP}" "${KIT_STEP_ARGV[@]}"
    steps::wait "${KIT_STEP}"
    local -ri code=$?
    if ((code)); then
        failures::explain "${code}"
        exit $?
    fi
    exit 0
}

main "$@"
