# shellcheck shell=bash
# What of the host reaches the ranks: what the job lists, and what Slurm and this script set. `kit submit` hands sbatch a clean
# environment; this holds for a batch script that somebody submits or runs by hand, too.

environment::require_allocation() {
    if [[ -z "${SLURM_JOB_ID:-}" ]]; then
        log::error "this script runs under sbatch, or by hand inside an allocation of salloc"
        exit 2
    fi
    # By hand in an interactive step: that step's own variables would be taken for this script's, and what it holds is to be shared.
    environment_share=()
    # Slurm 26.05 sets SLURM_STEP_ID in a batch script, too; what srun tells a task of its own port, no batch script has.
    if [[ -n "${SLURM_PTY_PORT:-}${SLURM_SRUN_COMM_PORT:-}" || ("${ENVIRONMENT:-}" != BATCH && -n "${SLURM_STEP_ID:-}") ]]; then
        log::info "interactive: step variables reset"
        environment_share=(--overlap)
        local name
        for name in $(compgen -e | grep -E '^SLURM_(STEP|STEPID|PROCID|LOCALID|NODEID|NTASKS|TASK_PID|PTY|SRUN|LAUNCH|GTIDS|DISTRIBUTION|OVERCOMMIT|UMASK)'); do
            unset "${name}"
        done
    fi
    # Slurm marks what sbatch started; a job whose script somebody runs by hand is the user's to cancel or to queue again.
    # What Slurm's commands call this job. The last task of an array has the array's number as its own, and by that number they
    # mean all of its tasks.
    environment_job="${SLURM_JOB_ID}"
    if [[ -n "${SLURM_ARRAY_TASK_ID:-}" ]]; then
        environment_job="${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"
    fi
    environment_batch=""
    [[ "${ENVIRONMENT:-}" != BATCH ]] || environment_batch=1
}

environment::scrub() {
    local -A keep=()
    local name
    for name in PATH HOME USER LOGNAME SHELL LANG LC_ALL TZ TMPDIR TERM DEBUG LD_LIBRARY_PATH "$@"; do
        keep["${name}"]=1
    done
    for name in $(compgen -e); do
        case "${name}" in
            # A nested submit's options, and Pyxis's: they would change steps behind the plan's back (field-notes 1 and 25).
            SLURM_SPANK_* | PYXIS_* | SBATCH_* | SALLOC_*) unset "${name}" ;;
            # srun takes these for options of its own.
            SLURM_CPU_BIND* | SLURM_MEM_BIND* | SLURM_GPU_BIND | SLURM_DISTRIBUTION | SLURM_EXACT | SLURM_HINT | SLURM_OVERLAP \
                | SLURM_WHOLE | SLURM_THREADS_PER_CORE | SLURM_WAIT | SLURM_KILL_BAD_EXIT | SLURM_MPI_TYPE | SLURM_EXPORT_ENV \
                | SLURM_LABELIO | SLURM_UNBUFFEREDIO | SLURM_OPEN_MODE | SLURM_RELATIVE | SLURM_NO_KILL) unset "${name}" ;;
            SLURM_* | SLURMD_* | KIT_* | CUDA_VISIBLE_DEVICES | GPU_DEVICE_ORDINAL | ROCR_VISIBLE_DEVICES | ZE_AFFINITY_MASK) ;;
            *) [[ -n "${keep[${name}]:-}" ]] || unset "${name}" 2>/dev/null || true ;;
        esac
    done
}
