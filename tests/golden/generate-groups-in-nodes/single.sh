#!/bin/bash
# unpack   writes the files below into the run folder of this job, and starts its batch.sh, which does the rest
# check    bin/preflight.sh on each node; a node that fails ends the job
# monitor  bin/gpu-monitor.sh on each node, until the ranks have ended
# ranks    a step of srun for each role, watched for stalls: worker.sh sets what a rank needs, and becomes the program of program.sh
# signal   120 s before the time limit the ranks get USR1 (or TERM, if they do not catch that), to save
# end      the steps that are left are ended, logs are merged, and the exit code is the program's
#SBATCH --job-name=llama3
#SBATCH --partition=batch
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=128
#SBATCH --time=04:00:00
#SBATCH --gpus-per-node=8
#SBATCH --output=/home/ada/project/slurm-%j.out
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
#SBATCH --no-requeue
#SBATCH --no-kill
# 1 node, 3 roles.
# lighthouse: 1 node x 1 rank, a service; srun, 14 CPUs a rank.
# replica-0 to replica-1, each: 1 node x 4 ranks = world size 4; torchrun, 14 CPUs a rank.
# CPUs: 128 per node, all of them.
# 1 node, 2 replica groups of 4 ranks; an average needs 2 of them.
# 
# node 0   ─┬─ lighthouse                            its port: http
#           ├─ group 0    GPU 0-3      rank 0-3      a port of its own
#           └─ group 1    GPU 4-7      rank 0-3      a port of its own

readonly KIT_MARK=@JOB@
readonly KIT_RUN_DIR=/shared/runs/llama-@JOB@
readonly -a KIT_FOLDERS=(
    logs
    monitor
    checkpoints
    state
    logs/lighthouse
    logs/replica-0
    logs/replica-1
)

set -euo pipefail

main() {
    if [[ -z "${SLURM_JOB_ID:-}" ]]; then
        printf 'This file runs under sbatch: sbatch %q\n' "$0" >&2
        exit 2
    fi
    local -r run_dir="${KIT_RUN_DIR//"${KIT_MARK}"/${SLURM_JOB_ID}}"
    # A job that was queued again continues in its existing folder.
    if [[ ! -e "${run_dir}" ]]; then
        partial="${run_dir%/*}/.unpack-${SLURM_JOB_ID}"
        trap 'rm -rf -- "${partial}"' EXIT
        rm -rf -- "${partial}"
        mkdir -p -- "${partial}"
        unpack_all
        mkdir -p -- "${KIT_FOLDERS[@]/#/"${partial}/"}"
        mv --no-target-directory -- "${partial}" "${run_dir}"
        trap - EXIT
    fi
    exec "${run_dir}/batch.sh"
}

# unpack MODE NAME: writes a file of the run folder from stdin. An empty file comes as an empty line.
unpack() {
    local -r mode="$1" path="${partial}/$2"
    local text
    IFS= read -r -d '' text || true
    mkdir -p -- "${path%/*}"
    [[ "${text}" != $'\n' ]] || text=""
    printf '%s' "${text//"${KIT_MARK}"/${SLURM_JOB_ID}}" >"${path}"
    chmod -- "${mode}" "${path}"
}

# Each job of this file has its own run folder. The job's number replaces the mark in the folder's name and in these files.
unpack_all() {
    unpack 755 batch.sh <<'KIT_FILE'
#!/bin/bash
#SBATCH --job-name=llama3
#SBATCH --partition=batch
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=128
#SBATCH --time=04:00:00
#SBATCH --gpus-per-node=8
#SBATCH --output=/home/ada/project/slurm-%j.out
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@120
#SBATCH --no-requeue
#SBATCH --no-kill
# 1 node, 3 roles.
# lighthouse: 1 node x 1 rank, a service; srun, 14 CPUs a rank.
# replica-0 to replica-1, each: 1 node x 4 ranks = world size 4; torchrun, 14 CPUs a rank.
# CPUs: 128 per node, all of them.
# 1 node, 2 replica groups of 4 ranks; an average needs 2 of them.
# 
# node 0   ─┬─ lighthouse                            its port: http
#           ├─ group 0    GPU 0-3      rank 0-3      a port of its own
#           └─ group 1    GPU 4-7      rank 0-3      a port of its own
# shellcheck source-path=SCRIPTDIR disable=SC2034,SC2054

readonly KIT_RUN_DIR=/shared/runs/llama-@JOB@
readonly KIT_CODE=DIGEST
readonly KIT_JOB_NAME=llama3
readonly -a KIT_IMAGES=(
    /scratch/shared/images/sha256/c0ffee0000000000000000000000000000000000000000000000000000000000.sqsh
    sha256:c0ffee0000000000000000000000000000000000000000000000000000000000
)
readonly KIT_RUNTIME=pyxis
readonly KIT_NODES=1
readonly KIT_WORLD='world sizes: replica-0 to replica-1 4 each'
readonly KIT_DEBUG_DEFAULT=0
readonly KIT_LEAD=120
readonly KIT_LEAD_SIGNALS=USR1,TERM
readonly KIT_GRACE=120
readonly KIT_MASTER_PORT_BASE=20000
readonly KIT_AVOID_DIR=/shared/runs/.avoid
readonly -a KIT_INHERIT=()
readonly KIT_OUTLIVES=1
readonly KIT_STEPS=3
readonly -A KIT_STEP_0=(
    [name]=lighthouse
    [folder]=roles/lighthouse
    [variable]=LIGHTHOUSE
    [policy]=service
    [first]=0
    [nodes]=1
    [ranks]=1
    [after]=''
    [ports]=http
    [ready]='http http /status'
    [ready_timeout]=120
    [health]=1
    [restart]=10
    [least]=1
)
readonly -a KIT_STEP_0_ENV=(
    KIT_ROLE_INDEX=0
    KIT_SERVICE=1
)
readonly -a KIT_STEP_0_ARGV=(
    srun
    --job-name=lighthouse
    --nodes=1
    --ntasks=1
    --ntasks-per-node=1
    --cpus-per-task=128
    --mpi=none
    --export=ALL
    --kill-on-bad-exit=1
    --wait=0
    --no-kill
    --overlap
    --output=/shared/runs/llama-@JOB@/logs/lighthouse/task-%t.log
    --open-mode=append
    --container-image=/scratch/shared/images/sha256/c0ffee0000000000000000000000000000000000000000000000000000000000.sqsh
    --container-mounts=/shared/runs/llama-@JOB@:/kit/run,/home/ada/project:/workspace,/tmp/kit-ada:/kit/cache,/shared/runs/llama-@JOB@/bin:/kit/run/bin:ro,/shared/runs/llama-@JOB@/lib:/kit/run/lib:ro
    --container-workdir=/workspace
    --no-container-mount-home
    --container-remap-root
    --container-readonly
    --no-container-entrypoint
    --export=ALL,BASH_ENV=/shared/runs/llama-@JOB@/lib/fuse_path.sh
    /kit/run/roles/lighthouse/worker.sh
)
# Steps 1 to 2 differ only in the values below.
make_step_1() {
    local -r number="$1" name="$2" first="$3" index="$4" gpus="$5"
    local -r upper="${name^^}"
    local -r variable="${upper//-/_}"
    declare -gA "KIT_STEP_${number}"
    declare -ga "KIT_STEP_${number}_ENV" "KIT_STEP_${number}_ARGV"
    local -n facts="KIT_STEP_${number}" env="KIT_STEP_${number}_ENV" argv="KIT_STEP_${number}_ARGV"
    facts=(
        [name]="${name}"
        [folder]=roles/replica-0
        [variable]="${variable}"
        [policy]=replica
        [first]="${first}"
        [nodes]=1
        [ranks]=4
        [after]=lighthouse
        [ports]=''
        [ready]=''
        [ready_timeout]=0
        [health]=''
        [restart]=3
        [least]=2
    )
    env=(
        KIT_ROLE_INDEX="${index}"
        KIT_GPUS="${gpus}"
    )
    argv=(
        srun
        --job-name="${name}"
        --nodes=1
        --ntasks=1
        --ntasks-per-node=1
        --cpus-per-task=128
        --mpi=none
        --export=ALL
        --kill-on-bad-exit=1
        --wait=0
        --no-kill
        --overlap
        --output=/shared/runs/llama-@JOB@/logs/"${name}"/task-%t.log
        --open-mode=append
        --container-image=/scratch/shared/images/sha256/c0ffee0000000000000000000000000000000000000000000000000000000000.sqsh
        --container-mounts=/shared/runs/llama-@JOB@:/kit/run,/home/ada/project:/workspace,/tmp/kit-ada:/kit/cache,/shared/runs/llama-@JOB@/bin:/kit/run/bin:ro,/shared/runs/llama-@JOB@/lib:/kit/run/lib:ro
        --container-workdir=/workspace
        --no-container-mount-home
        --container-remap-root
        --container-readonly
        --no-container-entrypoint
        --export=ALL,BASH_ENV=/shared/runs/llama-@JOB@/lib/fuse_path.sh
        /kit/run/roles/replica-0/worker.sh
    )
    readonly "KIT_STEP_${number}" "KIT_STEP_${number}_ENV" "KIT_STEP_${number}_ARGV"
}
# number, name, first, index, gpus
make_step_1 1 replica-0 0 0 0,1,2,3
make_step_1 2 replica-1 0 1 4,5,6,7
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
    /shared/runs/llama-@JOB@/bin/signal.sh
)
# The features of this run, in the order in which lib/parts.sh calls them, each with the key or the default that asks for it. Their
# constants are below.
readonly -a KIT_PARTS=(
    container_names # container.runtime
    heartbeat # monitor.heartbeat
    monitor # monitor
    pinned_image # image
    preflight # preflight
    job_roles # roles
    hot_pages # image
    stall_watch # watch
)
readonly -a KIT_CONTAINER_ARGV=(
    srun
    --job-name=kit-container
    --overlap
    --mem=0
    --nodes=1
    --ntasks=1
    --ntasks-per-node=1
    --cpus-per-task=1
    --mpi=none
    --export=ALL
    --output=/shared/runs/llama-@JOB@/logs/container.log
    --open-mode=append
    /shared/runs/llama-@JOB@/bin/container.sh
)
readonly KIT_PYXIS_UNPACKS=''
readonly KIT_UNPACK_TIMEOUT=1800
readonly KIT_HEARTBEAT=120
readonly -a KIT_MONITOR_ARGV=(
    srun
    --job-name=kit-monitor
    --overlap
    --mem=0
    --nodes=1
    --ntasks=1
    --ntasks-per-node=1
    --cpus-per-task=1
    --mpi=none
    --export=ALL
    --output=/shared/runs/llama-@JOB@/monitor/monitor.log
    --open-mode=append
    /shared/runs/llama-@JOB@/bin/gpu-monitor.sh
    /shared/runs/llama-@JOB@/monitor
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
    --nodes=1
    --ntasks=1
    --ntasks-per-node=1
    --cpus-per-task=1
    --mpi=none
    --export=ALL
    --output=/shared/runs/llama-@JOB@/logs/preflight.log
    --open-mode=append
    /shared/runs/llama-@JOB@/bin/preflight.sh
    run=/shared/runs/llama-@JOB@
    cache=/tmp/kit-ada
    free_kb=1000000
    shm_kb=0
    nofile=1024
    memlock=any
    skew=5
    gpus=8
    userns=1
    image=/scratch/shared/images/sha256/c0ffee0000000000000000000000000000000000000000000000000000000000.sqsh
    size=4096
    sha256=c0ffee0000000000000000000000000000000000000000000000000000000000
    source=/home/ada/project
)
readonly -a KIT_PROBE_ARGV=(
    srun
    --job-name=kit-probe
    --overlap
    --mem=0
    --nodes=1
    --ntasks=1
    --ntasks-per-node=1
    --cpus-per-task=1
    --mpi=none
    --export=ALL
    --output=/shared/runs/llama-@JOB@/logs/preflight.log
    --open-mode=append
    --container-image=/scratch/shared/images/sha256/c0ffee0000000000000000000000000000000000000000000000000000000000.sqsh
    --container-mounts=/shared/runs/llama-@JOB@:/kit/run,/home/ada/project:/workspace,/tmp/kit-ada:/kit/cache,/shared/runs/llama-@JOB@/bin:/kit/run/bin:ro,/shared/runs/llama-@JOB@/lib:/kit/run/lib:ro
    --container-workdir=/workspace
    --no-container-mount-home
    --container-remap-root
    --container-readonly
    --no-container-entrypoint
    --export=ALL,BASH_ENV=/shared/runs/llama-@JOB@/lib/fuse_path.sh
    /kit/run/bin/probe.sh
    python3
    roles/replica-0/image-env.sh
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
    /shared/runs/llama-@JOB@/bin/evidence.sh
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
KIT_FILE
    unpack 755 roles/lighthouse/worker.sh <<'KIT_FILE'
#!/bin/bash
# Runs once per Slurm task, inside the container. Maps Slurm's variables to ranks and becomes the program.
# shellcheck source-path=SCRIPTDIR source-path=SCRIPTDIR/../.. disable=SC2034

# The folder of this role's files in the run folder. A plain job has one role, whose files are in the run folder itself.
readonly KIT_FOLDER=roles/lighthouse
readonly KIT_SHAPE=srun
readonly KIT_AS_TORCHRUN=0
readonly KIT_RENDEZVOUS=static
readonly KIT_NNODES=1
readonly KIT_RANKS_PER_NODE=1
readonly KIT_CPUS_PER_RANK=14
readonly KIT_PYTHON=python3
readonly KIT_MAX_RESTARTS=0
readonly -a KIT_TORCHRUN_OPTIONS=()
readonly KIT_WORKDIR=/workspace
readonly KIT_CACHE_DIR=/kit/cache
export KIT_SEED=7

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
KIT_FILE
    unpack 644 roles/lighthouse/program.sh <<'KIT_FILE'
# The job's program, its arguments and its environment, unchanged to the byte. Read by worker.sh and rank.sh.
# shellcheck shell=bash disable=SC2034,SC2054
KIT_PROGRAM=(
    torchft_lighthouse
    --bind
    '0.0.0.0:{lighthouse.port.http}'
    --min_replicas
    2
    --join_timeout_ms
    60000
    --heartbeat_timeout_ms
    5000
    --quorum_tick_ms
    100
)
KIT_PROGRAM_ENV=(
    NCCL_DEBUG=WARN
    TORCH_NCCL_ASYNC_ERROR_HANDLING=1
    KIT_DEVICE=cuda
    RUST_LOG=info
)
KIT_FILE
    unpack 644 roles/lighthouse/image-env.sh <<'KIT_FILE'
# The image's short digest, which names the caches of compiled code, and variables that Enroot's login shell removes.
# shellcheck shell=bash disable=SC2034 # lib/cache_folders.sh reads it
KIT_IMAGE_SHORT=c0ffee000000
export PATH=/usr/bin
# What a site's TaskProlog sets may be on the node only. A preloaded library without a slash is looked for, as on the node.
[[ -d "${TMPDIR:-/}" ]] || unset TMPDIR
[[ -z "${LD_PRELOAD:-}" ]] || for image_env_file in ${LD_PRELOAD//:/ }; do
    [[ "${image_env_file}" != */* || -e "${image_env_file}" ]] || unset LD_PRELOAD
done
KIT_FILE
    unpack 755 roles/replica-0/worker.sh <<'KIT_FILE'
#!/bin/bash
# Runs once per Slurm task, inside the container. Maps Slurm's variables to ranks and becomes the program.
# shellcheck source-path=SCRIPTDIR source-path=SCRIPTDIR/../.. disable=SC2034

# The folder of this role's files in the run folder. A plain job has one role, whose files are in the run folder itself.
readonly KIT_FOLDER=roles/replica-0
readonly KIT_SHAPE=torchrun
readonly KIT_AS_TORCHRUN=0
readonly KIT_RENDEZVOUS=static
readonly KIT_NNODES=1
readonly KIT_RANKS_PER_NODE=4
readonly KIT_CPUS_PER_RANK=14
readonly KIT_PYTHON=python3
readonly KIT_MAX_RESTARTS=0
readonly -a KIT_TORCHRUN_OPTIONS=()
readonly KIT_WORKDIR=/workspace
readonly KIT_CACHE_DIR=/kit/cache
export KIT_SEED=7

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
KIT_FILE
    unpack 644 roles/replica-0/program.sh <<'KIT_FILE'
# The job's program, its arguments and its environment, unchanged to the byte. Read by worker.sh and rank.sh.
# shellcheck shell=bash disable=SC2034,SC2054
KIT_PROGRAM=(
    python3
    /kit/run/code/run.py
    --fault_tolerance.min_replica_size=2
)
KIT_PROGRAM_ENV=(
    NCCL_DEBUG=WARN
    TORCH_NCCL_ASYNC_ERROR_HANDLING=1
    KIT_DEVICE=cuda
    'REPLICA_GROUP_ID={self.index}'
    NUM_REPLICA_GROUPS=2
    'TORCHFT_LIGHTHOUSE=http://{lighthouse.address}:{lighthouse.port.http}'
)
KIT_FILE
    unpack 644 roles/replica-0/image-env.sh <<'KIT_FILE'
# The image's short digest, which names the caches of compiled code, and variables that Enroot's login shell removes.
# shellcheck shell=bash disable=SC2034 # lib/cache_folders.sh reads it
KIT_IMAGE_SHORT=c0ffee000000
export PATH=/usr/bin
# What a site's TaskProlog sets may be on the node only. A preloaded library without a slash is looked for, as on the node.
[[ -d "${TMPDIR:-/}" ]] || unset TMPDIR
[[ -z "${LD_PRELOAD:-}" ]] || for image_env_file in ${LD_PRELOAD//:/ }; do
    [[ "${image_env_file}" != */* || -e "${image_env_file}" ]] || unset LD_PRELOAD
done
KIT_FILE
    unpack 644 layout.txt <<'KIT_FILE'
1 node, 2 replica groups of 4 ranks; an average needs 2 of them.

node 0   ─┬─ lighthouse                            its port: http
          ├─ group 0    GPU 0-3      rank 0-3      a port of its own
          └─ group 1    GPU 4-7      rank 0-3      a port of its own
KIT_FILE
    unpack 644 config.toml <<'KIT_FILE'
[training]
local_batch_size = 4
seed = 7
KIT_FILE
    unpack 755 bin/checked.sh <<'KIT_FILE'
KIT_FILE
    unpack 755 bin/container.sh <<'KIT_FILE'
KIT_FILE
    unpack 755 bin/evidence.sh <<'KIT_FILE'
KIT_FILE
    unpack 755 bin/fuse/fuse-overlayfs <<'KIT_FILE'
KIT_FILE
    unpack 755 bin/fuse/squashfuse <<'KIT_FILE'
KIT_FILE
    unpack 755 bin/gpu-monitor.sh <<'KIT_FILE'
KIT_FILE
    unpack 755 bin/port.sh <<'KIT_FILE'
KIT_FILE
    unpack 755 bin/preflight.sh <<'KIT_FILE'
KIT_FILE
    unpack 755 bin/probe.sh <<'KIT_FILE'
KIT_FILE
    unpack 755 bin/rank.sh <<'KIT_FILE'
KIT_FILE
    unpack 755 bin/read-ahead.sh <<'KIT_FILE'
KIT_FILE
    unpack 755 bin/ready.sh <<'KIT_FILE'
KIT_FILE
    unpack 755 bin/shell.sh <<'KIT_FILE'
KIT_FILE
    unpack 755 bin/signal.sh <<'KIT_FILE'
KIT_FILE
    unpack 755 bin/unignore.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/cache_folders.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/clock.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/container_names.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/debug.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/endpoints.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/environment.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/events.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/failure_watch.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/failures.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/fuse_daemon.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/fuse_path.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/heartbeat.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/hot_pages.py <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/hot_pages.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/image_mount.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/job_roles.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/kit_callbacks.py <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/kit_events.py <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/kit_rank.py <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/kit_recorder.py <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/log.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/loops.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/monitor.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/nodes.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/numbers.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/orphans.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/output_links.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/parts.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/pinned_image.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/placeholders.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/preflight.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/rank_processes.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/rank_progress.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/rank_variables.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/reports.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/retry.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/role_gpus.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/role_links.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/role_policy.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/roles.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/signals.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/slurm.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/squashfs_image.py <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/stall.awk <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/stall_watch.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/steps.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/task_logs.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/tools.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/trust.sh <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/kit_keep.py <<'KIT_FILE'
KIT_FILE
    unpack 644 lib/kit_memory.py <<'KIT_FILE'
KIT_FILE
    unpack 644 job.toml <<'KIT_FILE'
name = "llama3"
launcher = "torchtitan"
image = "train-cpu"
args = []
shape = "replicas"
rendezvous = "static"
python = "python3"
inherit = []
mounts = []
seed = 7
snapshot = true
setup = []
debug = false
when = []

[env]
TORCH_NCCL_ASYNC_ERROR_HANDLING = "1"

[resources]
nodes = 1
time = "04:00:00"

[resources.gres]

[slurm]
partition = "batch"
output = "slurm-%j.out"
exclusive = false
requeue = false
lead = 120
extra = []

[container]
runtime = "pyxis"
writable = false
remap_root = true
mount_home = false
entrypoint = false
env = []
capabilities = []

[monitor]
enabled = true
select = "pumt"
options = "DT"
delay = 15
query = []
heartbeat = 120

[watch]
stall = "auto"
on_stall = "end"
patience = 600

[preflight]
enabled = true
free_disk_gb = 1.0
shm_gb = 0.0
nofile = 1024
memlock = "any"
clock_skew_s = 5.0
verify_image = false
container = true
all_reduce_s = 0
timeout_s = 60
unpack_s = 1800
on_failure = "fail"

[retry]
in_allocation = 0
requeue = 0
exit_codes = [
    134,
    135,
    137,
    139,
]
no_progress = 3
spares = 0
warm = []
keep = false

[step]
mpi = "none"
label = false
extra = []

[torchrun]
max_restarts = 0
local_ranks_filter = []

[secrets]
env = []

[notify]
on = []
to = []
by = "watch"

[profile]
ranks = [
    0,
]

[metrics]
tensorboard = false

[diloco]
replicas_per_node = 2
first_group = 0
across = false
restarts = 3
KIT_FILE
    unpack 644 cluster.toml <<'KIT_FILE'
description = "Enroot/Pyxis pod, remapped root, per-user scratch"
embedded = false
mounts = "pod"
inherit = []
setup = []
max_array = 1001
expedited_requeue = false

[node]
cpus = 128
gpus = 8
memory = "2000G"
gres = "gpus-per-node"

[container]
runtime = "pyxis"
stage = "shared"

[paths]
runs = "/scratch/{user}/runs"
store = "/scratch/shared/images"
cache = "/tmp/kit-{user}"

[store]
signers = []

[network]
NCCL_DEBUG = "WARN"
TORCH_NCCL_ASYNC_ERROR_HANDLING = "1"

[defaults.slurm]
partition = "batch"

[defaults.resources]
time = "04:00:00"

[defaults.container]
remap_root = true
mount_home = false
KIT_FILE
    unpack 644 launcher.toml <<'KIT_FILE'
description = "TorchTitan's train module, as one training or as torchft replica groups"
shapes = [
    "torchrun",
    "replicas",
]
script = "run.py"
framework = "torchtitan"
varies = ""
memory = false
requires = []

[releases]
package = "torchtitan"
known = [
    "0.1.0",
    "0.2.0",
    "0.2.1",
    "0.2.2",
    "0.3.0",
]
options = "torchtitan-options.toml"
module = "TORCHTITAN_MODULE"
words = [
    "module",
    "config",
    "help",
]

[releases.newer_with]

[defaults.env]
TORCH_NCCL_ASYNC_ERROR_HANDLING = "1"
KIT_FILE
    unpack 644 locks/train-cpu.lock <<'KIT_FILE'
schema = 1
name = "train-cpu"
sha256 = "c0ffee0000000000000000000000000000000000000000000000000000000000"
size = 4096
source = "build"
inputs = "1111111111111111111111111111111111111111111111111111111111111111"
reproducible = true
notes = []

[base]
kind = "bootstrap"
reference = "bookworm"
digest = "sha256:2222222222222222222222222222222222222222222222222222222222222222"

[squash]
compressor = "zstd"
block = "128K"
memory = "64M"

[config]
workdir = "/"
entrypoint = []
cmd = []
volumes = []

[config.env]
PATH = "/usr/bin"

[config.labels]

[tools]
kit = "0.1.0"
mksquashfs = "4.5.1"
engine = ""
image_id = ""

[packages.apt]

[packages.pip]
torch = "2.13.0"
KIT_FILE
}

# Below this line nothing is generated.
main "$@"
