# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # names that other libraries set or read
# The batch script's side of the preflight: runs the checks on every node, names the nodes that failed, and decides how to continue.

readonly preflight_tries=3
# Whether a step was ended because it took too long.
declare -gi preflight_timed_out=0

preflight::check() {
    local -r folder="${KIT_RUN_DIR}/state/preflight"
    local -i deadline=$((EPOCHSECONDS + KIT_PREFLIGHT_TIMEOUT)) more
    # A container's first start may take long.
    for more in "$(preflight::reading_s)" $(parts::call first_start_s); do
        deadline+=more
    done
    preflight::begin "${folder}" "${deadline}"
    if [[ -n "${KIT_PROBE_ARGV:-}" ]]; then
        # The container mounts the cache folder, which the preflight makes.
        if compgen -G "${folder}/*.refused" >/dev/null; then
            # A probe would start the container from other bytes than the locked ones.
            preflight::await "${deadline}" false kit-preflight
            [[ -z "${signals_got}" ]] || return 143
            preflight::judge "${folder}" preflight
            return $?
        fi
        KIT_NODE_NAMES="${nodes_all[*]}" steps::start kit-probe "${KIT_PROBE_ARGV[@]}"
    fi
    preflight::await "${deadline}" false kit-preflight kit-probe
    [[ -z "${signals_got}" ]] || return 143
    preflight::judge "${folder}" preflight probe
}

# Starts the preflight before this script asks Slurm its own questions, which take as long. Not before an image is staged: the nodes
# check their copies.
preflight::listed() {
    [[ -z "${KIT_STAGE_ARGV:-}" ]] || return 0
    preflight::start "${KIT_RUN_DIR}/state/preflight"
}

# preflight::start FOLDER: starts the preflight on every node of the allocation, with the spares.
preflight::start() {
    rm -rf -- "$1"
    mkdir -p -- "$1"
    KIT_NODE_NAMES="${nodes_all[*]}" steps::start kit-preflight "${KIT_PREFLIGHT_ARGV[@]}"
}

# preflight::begin FOLDER DEADLINE: waits until the preflight has begun on every node. It is the first step on these nodes. A node
# that Slurm cannot reach at that moment ("Communication connection failure") is not broken, so the step is started again.
preflight::begin() {
    local -r folder="$1"
    local -i tries
    for ((tries = 1; ; tries++)); do
        [[ -n "${steps_pid[kit-preflight]:-}" ]] || preflight::start "${folder}"
        preflight::await "$2" preflight::has_folders kit-preflight
        if preflight::has_folders || ((tries == preflight_tries || EPOCHSECONDS + 2 >= $2)) || [[ -n "${signals_got}" ]]; then
            return 0
        fi
        log::info "the preflight did not begin on every node; once more in 2 s"
        # The tasks of other nodes may still be there.
        steps::end_orphan kit-preflight
        sleep 2
    done
}

# Prints the extra seconds for reading the images completely, which a node does once: at 50 MB/s.
preflight::reading_s() {
    local word
    local -i bytes=0
    for word in "${KIT_PREFLIGHT_ARGV[@]}"; do
        [[ "${word}" != size=* ]] || bytes+="${word#size=}"
    done
    printf '%d' $((bytes / 50000000))
}

# preflight::await DEADLINE ENOUGH STEP…: waits until each step has ended or the command ENOUGH succeeds. Ends a step that hangs
# at the deadline.
preflight::await() {
    local -ri deadline="$1"
    local -r enough="$2"
    local name
    shift 2
    for name in "$@"; do
        while [[ -n "${steps_pid[${name}]:-}" ]] && kill -0 "${steps_pid[${name}]}" 2>/dev/null; do
            ! "${enough}" || return 0
            if ((EPOCHSECONDS >= deadline)) || [[ -n "${signals_got}" ]]; then
                preflight_timed_out=1
                steps::end 50 "${name}"
                continue 2
            fi
            sleep 0.05
        done
        steps::forget "${name}"
    done
}

# Whether the preflight has made its folders on every node. It reports them before the slow checks.
preflight::has_folders() {
    local -a made
    mapfile -t made < <(compgen -G "${KIT_RUN_DIR}/state/preflight/*.folders")
    ((${#made[@]} >= ${#nodes_all[@]}))
}

# Whether the container is started once on every node: by a step of its own, or by the preflight, which has its command after a `--`.
preflight::probes() {
    local word
    [[ -z "${KIT_PROBE_ARGV:-}" ]] || return 0
    for word in "${KIT_PREFLIGHT_ARGV[@]}"; do
        [[ "${word}" != -- ]] || return 0
    done
    return 1
}

# preflight::judge FOLDER CHECK…: names the nodes where one of these checks failed or gave no answer.
preflight::judge() {
    local -r folder="$1"
    shift
    local name check
    local -a failed=()
    for name in "${nodes_all[@]}"; do
        for check in "$@"; do
            [[ "${check}" != probe ]] || preflight::probes || continue
            if [[ ! -e "${folder}/${name}.${check}.ok" ]]; then
                failed+=("${name}")
                [[ -s "${folder}/${name}.${check}.failed" ]] || preflight::say_silent "${name}" "${check}"
                continue 2
            fi
        done
    done
    # Reports of healthy nodes were only for this script.
    rm -f -- "${folder}"/*.ok "${folder}"/*.folders
    ((${#failed[@]})) || return 0
    for name in "${failed[@]}"; do
        nodes::give_up "${name}"
    done
    log::error "preflight failed on ${failed[*]}"
    preflight::show "${folder}" "${failed[@]}"
    if ((${#nodes_all[@]} - ${#failed[@]} >= KIT_NODES)); then
        log::info "continuing with the spare nodes"
        nodes::choose
        return $?
    fi
    if [[ "${KIT_PREFLIGHT_ON_FAILURE}" == exclude ]]; then
        preflight::avoid "${folder}" "${failed[@]}"
    fi
    log::error "no rank was started"
    return "${failures_refused_code}"
}

# preflight::say_silent NODE CHECK: reports that the check wrote no report.
preflight::say_silent() {
    local said="no answer within ${KIT_PREFLIGHT_TIMEOUT} s"
    ((preflight_timed_out)) || said="the step ended without a report"
    log::error "$1: $2: ${said}; the end of ${KIT_RUN_DIR}/logs/preflight.log:"
    tail --lines=5 -- "${KIT_RUN_DIR}/logs/preflight.log" 2>/dev/null | sed 's/^/  | /' >&2
}

preflight::show() {
    local -r folder="$1"
    shift
    local name
    for name in "$@"; do
        cat -- "${folder}/${name}".*.failed 2>/dev/null | sed 's/^/  | /' >&2
    done
}

# Adds nodes to those that `kit submit` avoids for a day (`kit nodes` lists and forgets them). This job asks for others at once.
preflight::avoid() {
    local -r folder="$1"
    shift
    local name joined new
    mkdir -p -- "${KIT_AVOID_DIR}" && [[ ! -L "${KIT_AVOID_DIR}" ]] || return 0
    for name in "$@"; do
        # Renamed over what has the name. A link that another user made, also of the folder, would lead to a file of this user.
        new="$(mktemp -- "${KIT_AVOID_DIR}/.new-XXXXXXXX")" || break
        {
            printf 'job %s: ' "${SLURM_JOB_ID}"
            cat -- "${folder}/${name}".*.failed 2>/dev/null || printf 'no answer\n'
        } >"${new}"
        { chmod a+r -- "${new}" && mv -fT -- "${new}" "${KIT_AVOID_DIR}/${name}"; } || rm -f -- "${new}"
    done
    printf -v joined '%s,' "$@"
    if ((${SLURM_RESTART_COUNT:-0} < 5)); then
        retry::leave_out "${joined%,}"
    fi
}
