#!/bin/bash
#SBATCH --job-name=digits
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=48
#SBATCH --time=1-00:00:00
#SBATCH --switches=1@00:30:00
#SBATCH --gpus-per-node=2
#SBATCH --exclusive
#SBATCH --output=/shared/runs/digits-1/logs/batch.log
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
# 2 nodes x 2 ranks = world size 4; start shape torchrun: 1 task a node.
# CPUs: 48 per node, the share of 2 of 8 GPUs in 192 CPUs; 48 per task, 24 per rank.
# shellcheck source-path=SCRIPTDIR disable=SC2034,SC2054

readonly KIT_RUN_DIR=/shared/runs/digits-1
readonly KIT_CODE=DIGEST
readonly KIT_JOB_NAME=digits
readonly -a KIT_IMAGES=(
    /fsx/shared/images/sha256/c0ffee0000000000000000000000000000000000000000000000000000000000.sqsh
    sha256:c0ffee0000000000000000000000000000000000000000000000000000000000
)
readonly KIT_RUNTIME=pyxis
readonly KIT_NODES=2
readonly KIT_WORLD='world size 4'
readonly KIT_DEBUG_DEFAULT=0
readonly KIT_LEAD=120
readonly KIT_LEAD_SIGNALS=USR1,TERM
readonly KIT_GRACE=120
readonly KIT_MASTER_PORT_BASE=20000
readonly KIT_AVOID_DIR=/shared/runs/.avoid
readonly -a KIT_INHERIT=()
readonly KIT_OUTLIVES=0
readonly KIT_STEPS=1
readonly -A KIT_STEP_0=(
    [name]=train
    [folder]=''
    [variable]=TRAIN
    [policy]=main
    [first]=0
    [nodes]=2
    [ranks]=4
    [after]=''
    [ports]=''
    [ready]=''
    [ready_timeout]=0
    [health]=''
    [restart]=0
    [least]=1
)
readonly -a KIT_STEP_0_ENV=()
readonly -a KIT_STEP_0_ARGV=(
    srun
    --job-name=train
    --nodes=2
    --ntasks=2
    --ntasks-per-node=1
    --cpus-per-task=48
    --mpi=none
    --export=ALL
    --kill-on-bad-exit=1
    --wait=0
    --output=/shared/runs/digits-1/logs/task-%t.log
    --open-mode=append
    --cpu-bind=none
    --mem-per-gpu=64G
    --container-image=/fsx/shared/images/sha256/c0ffee0000000000000000000000000000000000000000000000000000000000.sqsh
    --container-mounts=/shared/runs/digits-1:/kit/run,/home/ada/project/examples/ddp:/workspace,/opt/dlami/nvme/kit-ada:/kit/cache,/shared/runs/digits-1/bin:/kit/run/bin:ro,/shared/runs/digits-1/lib:/kit/run/lib:ro
    --container-workdir=/workspace
    --no-container-mount-home
    --container-remap-root
    --container-readonly
    --no-container-entrypoint
    --export=ALL,BASH_ENV=/shared/runs/digits-1/lib/fuse_path.sh
    /kit/run/worker.sh
)
readonly -a KIT_SIGNAL_ARGV=(
    srun
    --job-name=kit-signal
    --overlap
    --mem=0
    --ntasks-per-node=1
    --cpus-per-task=1
    --mpi=none
    --export=ALL
    --output=/dev/null
    --open-mode=append
    /shared/runs/digits-1/bin/signal.sh
)
# The features of this run, in the order in which lib/parts.sh calls them, each with the key or the default that asks for it. Their
# constants are below.
readonly -a KIT_PARTS=(
    restarts # slurm.requeue
    container_names # container.runtime
    heartbeat # monitor.heartbeat
    monitor # monitor
    pinned_image # image
    preflight # preflight
    hot_pages # image
    stall_watch # watch
)
readonly KIT_RETRY_IN_ALLOCATION=0
readonly KIT_RETRY_REQUEUE=0
readonly -a KIT_RETRY_CODES=(
    134
    135
    137
    139
)
readonly KIT_NO_PROGRESS=3
readonly KIT_REQUEUE_CAPPED=0
readonly -a KIT_CONTAINER_ARGV=(
    srun
    --job-name=kit-container
    --overlap
    --mem=0
    --nodes=2
    --ntasks=2
    --ntasks-per-node=1
    --cpus-per-task=1
    --mpi=none
    --export=ALL
    --output=/shared/runs/digits-1/logs/container.log
    --open-mode=append
    /shared/runs/digits-1/bin/container.sh
)
readonly KIT_PYXIS_UNPACKS=''
readonly KIT_UNPACK_TIMEOUT=1800
readonly KIT_HEARTBEAT=120
readonly -a KIT_MONITOR_ARGV=(
    srun
    --job-name=kit-monitor
    --overlap
    --mem=0
    --nodes=2
    --ntasks=2
    --ntasks-per-node=1
    --cpus-per-task=1
    --mpi=none
    --export=ALL
    --output=/shared/runs/digits-1/monitor/monitor.log
    --open-mode=append
    /shared/runs/digits-1/bin/gpu-monitor.sh
    /shared/runs/digits-1/monitor
    pumt
    DT
    15
)
readonly KIT_PREFLIGHT_TIMEOUT=60
readonly KIT_PREFLIGHT_ON_FAILURE=fail
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
    --output=/shared/runs/digits-1/logs/preflight.log
    --open-mode=append
    /shared/runs/digits-1/bin/preflight.sh
    run=/shared/runs/digits-1
    cache=/opt/dlami/nvme/kit-ada
    free_kb=1000000
    shm_kb=0
    nofile=1024
    memlock=any
    skew=5
    gpus=2
    userns=1
    image=/fsx/shared/images/sha256/c0ffee0000000000000000000000000000000000000000000000000000000000.sqsh
    size=4096
    sha256=c0ffee0000000000000000000000000000000000000000000000000000000000
    source=/home/ada/project/examples/ddp
)
readonly -a KIT_PROBE_ARGV=(
    srun
    --job-name=kit-probe
    --overlap
    --mem=0
    --nodes=2
    --ntasks=2
    --ntasks-per-node=1
    --cpus-per-task=1
    --mpi=none
    --export=ALL
    --output=/shared/runs/digits-1/logs/preflight.log
    --open-mode=append
    --container-image=/fsx/shared/images/sha256/c0ffee0000000000000000000000000000000000000000000000000000000000.sqsh
    --container-mounts=/shared/runs/digits-1:/kit/run,/home/ada/project/examples/ddp:/workspace,/opt/dlami/nvme/kit-ada:/kit/cache,/shared/runs/digits-1/bin:/kit/run/bin:ro,/shared/runs/digits-1/lib:/kit/run/lib:ro
    --container-workdir=/workspace
    --no-container-mount-home
    --container-remap-root
    --container-readonly
    --no-container-entrypoint
    --export=ALL,BASH_ENV=/shared/runs/digits-1/lib/fuse_path.sh
    /kit/run/bin/probe.sh
    python3
    image-env.sh
)
readonly KIT_STALL=auto
readonly KIT_ON_STALL=end
readonly KIT_PATIENCE=600
readonly -a KIT_EVIDENCE_ARGV=(
    srun
    --job-name=kit-evidence
    --overlap
    --mem=0
    --ntasks-per-node=1
    --cpus-per-task=1
    --mpi=none
    --export=ALL
    /shared/runs/digits-1/bin/evidence.sh
)

# This script runs on the first node, outside any container: under sbatch, or by hand in an allocation of salloc. The kit's pages
# docs/concepts/faults.md and docs/concepts/runs.md say what it does on each signal and failure, and what each file is.
# Below this line nothing is generated.
set -uo pipefail

# Slurm keeps its own copy of this script. What the script runs lies in a folder that may wait for days where others can write. So
# the folder, and the files and folders "$@" in it, must be this user's, and these have the digest that was written here at submit.
# What lies beside them (worker.sh, program.sh, setup.sh) only this user can have changed since.
require_own_code() {
    local others found
    cd -- "${KIT_RUN_DIR}" || exit 72
    others="$(find . state "$@" -maxdepth 0 \( ! -uid "${EUID}" -o -perm /022 -o -type l \) -printf "${KIT_RUN_DIR}/%p (of %u, mode %m) ")"
    found="$(find "$@" -name __pycache__ -prune -o -type f -print0 | LC_ALL=C sort --zero-terminated \
        | xargs --null sha256sum -- | sha256sum)"
    cd -- "${OLDPWD}" 2>/dev/null || cd /
    [[ -n "${others}" || "${found%% *}" != "${KIT_CODE}" ]] || return 0
    printf 'the run folder is not what was submitted, and nothing of it is run: %s\n  try: kit rerun %s\n' \
        "${others:-files of ${KIT_RUN_DIR} have changed}" "${KIT_RUN_DIR##*/}" >&2
    exit 72
}
require_own_code bin lib

source "${KIT_RUN_DIR}/lib/clock.sh"
source "${KIT_RUN_DIR}/lib/log.sh"
source "${KIT_RUN_DIR}/lib/numbers.sh"
source "${KIT_RUN_DIR}/lib/environment.sh"
source "${KIT_RUN_DIR}/lib/output_links.sh"
source "${KIT_RUN_DIR}/lib/debug.sh"
source "${KIT_RUN_DIR}/lib/slurm.sh"
source "${KIT_RUN_DIR}/lib/nodes.sh"
source "${KIT_RUN_DIR}/lib/events.sh"
source "${KIT_RUN_DIR}/lib/loops.sh"
source "${KIT_RUN_DIR}/lib/steps.sh"
source "${KIT_RUN_DIR}/lib/failures.sh"
source "${KIT_RUN_DIR}/lib/failure_watch.sh"
source "${KIT_RUN_DIR}/lib/retry.sh"
source "${KIT_RUN_DIR}/lib/endpoints.sh"
source "${KIT_RUN_DIR}/lib/role_policy.sh"
source "${KIT_RUN_DIR}/lib/roles.sh"
source "${KIT_RUN_DIR}/lib/signals.sh"
source "${KIT_RUN_DIR}/lib/task_logs.sh"
source "${KIT_RUN_DIR}/lib/parts.sh"
parts::source

end_attempt() {
    failure_watch::stop
    parts::call after_attempt
}

# Decides how this start ends: changes the caller's `what` from `end`, and its `code`. In this order: a part asks for a requeue; Slurm
# has put the job back by itself; Slurm preempted a job that may go back, and the code is of its signals, not of a `kit cancel`; ranks
# that ended with 0 after a preemption.
# shellcheck disable=SC2317 # called by the EXIT trap
judge_end() {
    if parts::any wants_requeue "${code}"; then
        what=requeue
    elif retry::look; retry::slurm_requeued; then
        what=requeued
    elif ((code)) && [[ -z "${signals_got}" || "${signals_got}" == USR1 || -n "${signals_slurms_term}" ]] && retry::preempted \
        && parts::any may_requeue; then
        what=requeue
    elif ((code == 0)) && retry::preempted; then
        retry::doubt_end
        code="${retry_doubted_code}"
    fi
    parts::call end_judged
}

# shellcheck disable=SC2317 # called by the EXIT trap
finish() {
    local code=$? what=end
    trap - EXIT
    # A subshell killed right after fork inherits the EXIT trap; only the main shell may run it.
    [[ "${BASHPID}" == "$$" ]] || exit "${code}"
    trap '' TERM USR1 USR2 INT HUP QUIT
    end_attempt
    signals::ask_again
    judge_end
    # Do this first: after a TERM, Slurm kills this script within seconds.
    [[ "${what}" != end ]] || retry::record_end "${code}"
    steps::end_all
    parts::call end
    parts::call stopped
    failures::release_space
    task_logs::merge
    if [[ "${what}" == requeue ]] && ! parts::any requeue "${code}"; then
        # Slurm refused.
        what=end
        retry::record_end "${code}"
    fi
    case "${what}" in
        requeued)
            log::info "exit code ${code}; Slurm has put the job back into the queue"
            events::record requeue exit_code "${code}"
            ;;
        end)
            retry::end "${code}"
            parts::call closed
            ;;
    esac
    # `kit cancel` signals this script alone: scancel would end containers before their ranks have saved. Now Slurm is told of it.
    if [[ -n "${environment_batch}" && "${what}" == end && "${signals_got}" == TERM && -z "${signals_slurms_term}" ]]; then
        slurm::ask scancel "${environment_job}" 2>/dev/null
    fi
    exit "${code}"
}

train() {
    local -i code
    while true; do
        retry::begin_attempt || return 1
        parts::call before_attempt
        failure_watch::start
        roles::run
        code=$?
        end_attempt
        if ! parts::any again "${code}"; then
            parts::call after_last_attempt
            return "${code}"
        fi
    done
}

main() {
    # Other users must not change the kit's files, nor the log that Slurm has made. The ranks get the user's own umask back. srun
    # would take the submitter's.
    KIT_UMASK="$(umask)"
    export KIT_UMASK
    umask g-w,o-w
    unset SLURM_UMASK
    [[ ! -f /dev/stdout ]] || chmod go-w /dev/stdout || true
    environment::require_allocation
    output_links::link
    trap finish EXIT
    environment::scrub "${KIT_INHERIT[@]}"
    debug::enable_if_asked "${DEBUG:-${KIT_DEBUG_DEFAULT}}"
    signals::trap

    nodes::list || exit 1
    events::record start nodes "${SLURM_JOB_NODELIST}"
    # The part preflight starts the nodes' checks here, and waits for them below, at `check`.
    parts::require listed || exit $?
    parts::require prepare || exit $?
    nodes::resolve || exit 1
    nodes::banner
    parts::call begun
    failures::reserve_space
    parts::require check_image || exit $?
    events::record phase name image
    parts::require stage || exit $?
    # The checks have run meanwhile. From here on, the job waits for them.
    events::record phase name preflight
    parts::require check || exit $?
    parts::require before_ranks || exit $?
    train
    exit $?
}

main "$@"
