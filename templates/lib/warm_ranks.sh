# shellcheck shell=bash
# shellcheck disable=SC2154 # lib/nodes.sh and lib/steps.sh set nodes_all and steps_pid
# Warm ranks (`[retry] warm`): step kit-warm has one process on each node, which imports modules and forks the ranks of the node
# (warm_ranks.py). It lives over the attempts of a job. It runs in the job's container, with the job's set-up lines.

# Seconds in which a rank looks for the warm process: at the job's first start, whose steps start together, and later.
readonly warm_ranks_wait_first=30 warm_ranks_wait=2
# Characters of the longest environment that a rank may have, which its place in /proc must hold.
readonly warm_ranks_room=120000

# Called by the batch script before each attempt. A warm process that died is not started again: it may die again.
warm_ranks::start() {
    [[ -n "${KIT_WARM_ARGV[*]:-}" ]] || return 0
    if [[ -z "${KIT_WARM_WAIT:-}" ]]; then
        steps::set_env KIT_WARM_SERVER=1 "KIT_MASTER_ADDR=${KIT_MASTER_ADDR}" "KIT_MASTER_PORT=${KIT_MASTER_PORT}"
        KIT_NODE_NAMES="${nodes_all[*]}" steps::start kit-warm "${KIT_WARM_ARGV[@]}"
        export KIT_WARM_WAIT="${warm_ranks_wait_first}"
    elif kill -0 "${steps_pid[kit-warm]:-0}" 2>/dev/null; then
        KIT_WARM_WAIT="${warm_ranks_wait}"
    else
        log::info "step kit-warm has ended; the ranks import by themselves. See ${KIT_RUN_DIR}/logs/warm.log"
        KIT_WARM_WAIT=0
    fi
}

# Prints the name of the abstract socket. Virtual nodes of one machine may share them.
warm_ranks::name() {
    printf 'kit-warm-%s.%s-%s' "${SLURM_JOB_ID}" "${SLURM_RESTART_COUNT:-0}" "${SLURMD_NODENAME:-$(uname -n)}"
}

# Called by worker.sh in step kit-warm: becomes the warm process, with the environment of a rank.
warm_ranks::serve() {
    local -r path="${PYTHONPATH:+${PYTHONPATH}:}${KIT_RUN_DIR}/lib"
    local pad modules
    printf -v pad '%*s' "${warm_ranks_room}" ''
    modules="$(IFS=,; printf '%s' "${KIT_WARM[*]}")"
    umask "${KIT_UMASK:-$(umask)}"
    exec env -- "KIT_WARM_ROOM=${pad}" "PYTHONPATH=${path}" "${KIT_PROGRAM_ENV[@]}" "${KIT_PROGRAM[0]}" "${KIT_RUN_DIR}/lib/warm_ranks.py" \
        "$(warm_ranks::name)" "${modules}" "${KIT_PROGRAM[@]}"
}
