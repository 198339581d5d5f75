# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # other libraries set steps_code, failures_name, nodes_bad and more, and read container_names_prefix
# Runs the lines of [once], [per_node] and [after]: bin/once.sh is the step of each. [once]: on the first node, before any rank, once
# per job; a start after a requeue does not repeat them. [per_node]: on every good node, spares too, before the ranks, at each start of
# this script, because a requeued job may get other nodes. [after]: on the first node, when the run has ended and its code is known.

# Seconds between checks for lines that lost their slurmstepd. srun would wait for them forever.
readonly once_look_s=5
# Table -> seconds, where the job limits its lines.
declare -p KIT_LINES_LIMIT >/dev/null 2>&1 || declare -gA KIT_LINES_LIMIT=()

once::before_ranks() {
    local -r done_file="${KIT_RUN_DIR}/state/once-${SLURM_JOB_ID}"
    if [[ -n "${KIT_ONCE_ARGV:-}" && ! -e "${done_file}" ]]; then
        once::must once "${KIT_NODE_NAMES%% *}" "${KIT_ONCE_ARGV[@]}" || return $?
        : >"${done_file}"
    fi
    [[ -z "${KIT_PER_NODE_ARGV:-}" ]] || once::must per_node "$(once::good_nodes)" "${KIT_PER_NODE_ARGV[@]}"
}

# Called when all steps are gone, in `finish`, which sets what and code. Slurm's own end of a job leaves no time for another step.
once::end() {
    local container_names_prefix=""
    local -i came
    [[ "${what:-}" == end && -n "${KIT_AFTER_ARGV:-}" && -n "${KIT_NODE_NAMES:-}" ]] || return 0
    if [[ -n "${signals_slurms_term}" ]]; then
        log::info "the lines of [after] do not run: Slurm is ending the job"
        return 0
    fi
    # The end is on record, and nothing may follow it there. The deadline was that of the ranks. The containers that Pyxis unpacked are gone, so that this step's has no name.
    steps::clear_deadline
    once::run after "${KIT_NODE_NAMES%% *}" "${KIT_AFTER_ARGV[@]}"
    came=$?
    ((came == 0)) || once::say after "the lines of [after] ended with exit code ${came}; the run's own is ${code}"
    return 0
}

# once::must TABLE NODES SRUN-WORD…: runs lines without which no rank starts.
once::must() {
    local -i came
    events::record phase name once
    once::run "$@"
    came=$?
    [[ -z "${signals_got}" ]] || return 143
    ((came == 0)) || once::say "$1" "the lines of [$1] ended with exit code ${came}; no rank was started"
    return "${came}"
}

once::say() {
    log::error "$2"
    failures::tail "${KIT_RUN_DIR}/logs/$1.log"
}

# once::run TABLE NODES SRUN-WORD…: starts the step on these nodes, and returns its code. NODES: with blanks.
once::run() {
    local -r table="$1" step="kit-${1//_/-}"
    local -ra nodes=($2)
    local -i once_lost=0 limit="${KIT_LINES_LIMIT[$1]:-0}"
    shift 2
    failures::prepare "${table}"
    steps::set_env "KIT_FAILURES=${failures_name}" "KIT_LINES=${table}"
    [[ "${table}" != after ]] || steps_env+=("KIT_EXIT_CODE=${code}")
    KIT_NODE_NAMES="${nodes[*]}" steps::start "${step}" "$1" --nodes="${#nodes[@]}" --ntasks="${#nodes[@]}" "${@:2}"
    ((limit == 0)) || steps::doom "${step}" "its lines took longer than ${table}.timeout_s, ${limit} s" "${limit}"
    [[ "${table}" == after ]] || parts::call programs_started
    once::wait "${step}" "${table}" "${nodes[0]}"
    # 128 + SIGKILL, as for a rank that is killed.
    return $((once_lost ? 137 : steps_code))
}

# Prints the nodes that passed their checks, with blanks.
once::good_nodes() {
    local name
    local -a good=()
    for name in "${nodes_all[@]}"; do
        [[ " ${nodes_bad[*]} " == *" ${name} "* ]] || good+=("${name}")
    done
    printf '%s' "${good[*]}"
}

# once::wait STEP TABLE NODE: waits until the step has ended. Slurm does not notice when the slurmstepd of its lines is gone. The lines
# record that themselves (orphans.sh), but under Pyxis the image's files vanish at the same moment, and nothing in the container can
# write. So this script checks too.
once::wait() {
    local -i next=$((EPOCHSECONDS + once_look_s)) missed=0
    local once_step=""
    until steps::ended "$1"; do
        if ((EPOCHSECONDS >= next)); then
            next=$((EPOCHSECONDS + once_look_s))
            # Slurm lists a step some moments before its slurmstepd exists.
            if once::misses_slurmstepd "$1" "$3"; then missed+=1; else missed=0; fi
            if ((missed >= 2)) || failures::any "$2"; then
                steps::doom "$1" "slurmstepd, by which Slurm runs it, is gone"
                once_lost=1
            fi
        fi
        steps::enforce_deadline "$1"
        sleep 0.2
    done
}

# Whether Slurm has a step that no slurmstepd runs. Checked only where it can be seen: on this node, which has the batch script's
# slurmstepd.
once::misses_slurmstepd() {
    [[ "$2" == "${SLURMD_NODENAME:-}" ]] && once::has_slurmstepd batch || return 1
    # Ask once: the number does not change.
    [[ -n "${once_step}" ]] || read -r once_step _ < <(steps::ids "$1") || return 1
    ! once::has_slurmstepd "${once_step##*.}"
}

# once::has_slurmstepd STEP: looks for the title that slurmstepd gives itself.
once::has_slurmstepd() {
    local path line
    while read -r path; do
        line=""
        { read -r line <"${path%/cmdline}/stat"; } 2>/dev/null
        [[ "${line}" != *"(slurmstepd) "[!ZX]* ]] || return 0
    done < <(grep -lsaF "slurmstepd: [${environment_job}.$1]" /proc/[0-9]*/cmdline)
    return 1
}
