# shellcheck shell=bash
# Chooses what reaches the ranks from the host's environment: variables that the job lists, and those that Slurm and this script
# set. `kit submit` gives sbatch a clean environment. This also cleans it for a batch script that somebody submits or runs by hand.

environment::require_allocation() {
    if [[ -z "${SLURM_JOB_ID:-}" ]]; then
        log::error "this script runs under sbatch, or by hand inside an allocation of salloc"
        exit 2
    fi
    # srun starts a script once per task. One batch script runs all steps of the job.
    if ((${SLURM_PROCID:-0} > 0)); then
        log::info "task ${SLURM_PROCID} of the step that started this script has nothing to do: task 0 runs the job"
        exit 0
    fi
    # By hand in an interactive step: this script would take that step's variables for its own, and must share the step's resources.
    environment_share=()
    # Slurm 26.05 also sets SLURM_STEP_ID in a batch script. No batch script has the variables in which srun gives a task its port.
    if [[ -n "${SLURM_PTY_PORT:-}${SLURM_SRUN_COMM_PORT:-}" || ("${ENVIRONMENT:-}" != BATCH && -n "${SLURM_STEP_ID:-}") ]]; then
        log::info "interactive: step variables reset"
        environment_share=(--overlap)
        local name
        for name in $(compgen -e | grep -E '^SLURM_(STEP|STEPID|PROCID|LOCALID|NODEID|NTASKS|TASK_PID|PTY|SRUN|LAUNCH|GTIDS|DISTRIBUTION|OVERCOMMIT|UMASK)'); do
            unset "${name}"
        done
    fi
    # environment_batch: Slurm marks what sbatch started. If somebody runs a job's script by hand, only they cancel or requeue the
    # job. environment_job: the job's number for Slurm's commands. The last task of an array has the array's number as its own, and
    # by that number they mean all of its tasks.
    environment_job="${SLURM_JOB_ID}"
    if [[ -n "${SLURM_ARRAY_TASK_ID:-}" ]]; then
        environment_job="${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"
    fi
    environment_batch=""
    [[ "${ENVIRONMENT:-}" != BATCH ]] || environment_batch=1
}

environment::scrub() {
    local -A keep=()
    local -a patterns=()
    local name pattern
    for name in PATH HOME USER LOGNAME SHELL LANG LC_ALL TZ TMPDIR TERM DEBUG LD_LIBRARY_PATH "$@"; do
        if [[ "${name}" == *'*' ]]; then patterns+=("${name}"); else keep["${name}"]=1; fi
    done
    for name in $(compgen -e); do
        case "${name}" in
            # Options of a nested submit, and of Pyxis. They would change steps without the plan's knowledge.
            SLURM_SPANK_* | PYXIS_* | SBATCH_* | SALLOC_*) unset "${name}" ;;
            # srun would take these as its own options.
            SLURM_CPU_BIND* | SLURM_MEM_BIND* | SLURM_GPU_BIND | SLURM_DISTRIBUTION | SLURM_EXACT | SLURM_HINT | SLURM_OVERLAP \
                | SLURM_WHOLE | SLURM_THREADS_PER_CORE | SLURM_WAIT | SLURM_KILL_BAD_EXIT | SLURM_MPI_TYPE | SLURM_EXPORT_ENV \
                | SLURM_LABELIO | SLURM_UNBUFFEREDIO | SLURM_OPEN_MODE | SLURM_RELATIVE | SLURM_NO_KILL) unset "${name}" ;;
            SLURM_* | SLURMD_* | KIT_* | CUDA_VISIBLE_DEVICES | GPU_DEVICE_ORDINAL | ROCR_VISIBLE_DEVICES | ZE_AFFINITY_MASK) ;;
            *)
                [[ -z "${keep[${name}]:-}" ]] || continue
                for pattern in "${patterns[@]}"; do
                    # `kit submit` passes on no secret by a pattern; a script that somebody runs by hand finds them in the shell.
                    [[ "${name}" != ${pattern} || "${name}" =~ KEY|TOKEN|SECRET|PASSW ]] || continue 2
                done
                unset "${name}" 2>/dev/null || true
                ;;
        esac
    done
    # Enroot is many starts of bash. Each warns of an LC_ALL that the node lacks, and a late warning sometimes ends Enroot with
    # `Invalid argument: /tmp/.enroot_config_…`.
    case "${KIT_RUNTIME:-}" in
        pyxis | enroot) [[ -z "${LC_ALL:-}" ]] || export LC_ALL=C.UTF-8 ;;
    esac
}
