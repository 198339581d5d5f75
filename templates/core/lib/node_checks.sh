# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # names that other libraries set or read
# The batch script's side of the preflight: runs the checks on every node, names the nodes that failed, and decides how to continue.

# Exit code of failed checks. Programs do not return it by convention: BSD's sysexits call it EX_OSFILE.
readonly node_checks_failed_code=72
readonly node_checks_tries=3
# Whether a step was ended because it took too long.
declare -i node_checks_timed_out=0

# Checks that every start of the ranks, also after a requeue, uses the same image bytes as the first.
node_checks::image() {
    local -i i
    for ((i = 0; i < ${#KIT_IMAGES[@]}; i += 2)); do
        node_checks::one_image "${KIT_IMAGES[i]}" "${KIT_IMAGES[i + 1]}" || return $?
    done
}

# node_checks::one_image FILE DIGEST: inode, size and time show that it is the same file. If they changed, its digest decides.
node_checks::one_image() {
    [[ "$1" == /* && "$2" == sha256:* ]] || return 0
    local -r record="${KIT_RUN_DIR}/state/image-${2#sha256:}"
    local found digest
    # The preflight reports a missing image, on every node.
    found="$(stat --dereference --format='%i %s %.9Y %.9Z' -- "$1" 2>/dev/null)" || return 0
    if [[ -r "${record}" && "${found}" != "$(<"${record}")" ]]; then
        log::info "image $1 is not the file that this run began with; computing its digest"
        digest="$(sha256sum -- "$1")"
        if [[ "sha256:${digest%% *}" != "$2" ]]; then
            log::error "image $1 was replaced under the run: it has the digest sha256:${digest%% *}, the run is pinned to $2"
            return 1
        fi
    fi
    printf '%s\n' "${found}" >"${record}"
}

# Copies the image to every node's own disk before anything starts from it.
node_checks::stage() {
    events::record phase name image
    ((${#KIT_STAGE_ARGV[@]})) || return 0
    local -r folder="${KIT_RUN_DIR}/state/stage"
    local -i code
    rm -rf -- "${folder}"
    mkdir -p -- "${folder}"
    parts::call before_stage
    KIT_NODE_NAMES="${nodes_all[*]}" steps::start kit-stage "${KIT_STAGE_ARGV[@]}"
    node_checks::await_stage
    code=$?
    parts::call after_stage
    ((code)) || return 0
    [[ -z "${signals_got}" ]] || return 143
    node_checks::judge_stage "${folder}"
}

# Waits for the step, and returns its code. After a signal, it is ended with TERM first: it then removes what it has not finished.
node_checks::await_stage() {
    until steps::ended kit-stage; do
        if [[ -n "${signals_got}" ]]; then
            steps::end 50 kit-stage
            return 143
        fi
        steps::pause kit-stage
    done
    return "${steps_code}"
}

# node_checks::judge_stage FOLDER: names the nodes that could not get the image. Spare nodes take their place.
node_checks::judge_stage() {
    local -r folder="$1"
    local name
    local -a failed=()
    for name in "${nodes_all[@]}"; do
        [[ ! -e "${folder}/${name}.failed" ]] || failed+=("${name}")
    done
    if ((${#failed[@]} == 0)); then
        log::error "the image was not staged on every node; no rank was started"
        tail --lines=5 -- "${KIT_RUN_DIR}/logs/stage.log" 2>/dev/null | sed 's/^/  | /' >&2
        return "${node_checks_failed_code}"
    fi
    for name in "${failed[@]}"; do
        nodes::give_up "${name}"
        sed "s/^/  | ${name}: image not staged: /" -- "${folder}/${name}.failed" >&2
    done
    if ((${#nodes_all[@]} - ${#nodes_bad[@]} >= KIT_NODES)); then
        log::error "the image was not staged on ${failed[*]}"
        log::info "continuing with the spare nodes"
        nodes::choose
        return $?
    fi
    log::error "the image was not staged on ${failed[*]}; no rank was started"
    return "${node_checks_failed_code}"
}

node_checks::nodes() {
    events::record phase name preflight
    ((${#KIT_PREFLIGHT_ARGV[@]})) || return 0
    local -r folder="${KIT_RUN_DIR}/state/preflight"
    local -i deadline=$((EPOCHSECONDS + KIT_PREFLIGHT_TIMEOUT + (container_names_unpacked ? KIT_UNPACK_TIMEOUT : 0)))
    deadline+="$(node_checks::reading_s)"
    node_checks::begin "${folder}" "${deadline}"
    if ((${#KIT_PROBE_ARGV[@]})); then
        # The container mounts the cache folder, which the preflight makes.
        if compgen -G "${folder}/*.refused" >/dev/null; then
            # A probe would start the container from other bytes than the locked ones.
            node_checks::await "${deadline}" false kit-preflight
            [[ -z "${signals_got}" ]] || return 143
            node_checks::judge "${folder}" preflight
            return $?
        fi
        KIT_NODE_NAMES="${nodes_all[*]}" steps::start kit-probe "${KIT_PROBE_ARGV[@]}"
    fi
    node_checks::await "${deadline}" false kit-preflight kit-probe
    [[ -z "${signals_got}" ]] || return 143
    node_checks::judge "${folder}" preflight probe
}

# Starts the preflight before this script asks Slurm its own questions, which take as long. Not before an image is staged: the nodes
# check their copies.
node_checks::start_early() {
    ((${#KIT_PREFLIGHT_ARGV[@]} && !${#KIT_STAGE_ARGV[@]})) || return 0
    node_checks::start "${KIT_RUN_DIR}/state/preflight"
}

# node_checks::start FOLDER: starts the preflight on every node of the allocation, with the spares.
node_checks::start() {
    rm -rf -- "$1"
    mkdir -p -- "$1"
    KIT_NODE_NAMES="${nodes_all[*]}" steps::start kit-preflight "${KIT_PREFLIGHT_ARGV[@]}"
}

# node_checks::begin FOLDER DEADLINE: waits until the preflight has begun on every node. It is the first step on these nodes. A node
# that Slurm cannot reach at that moment ("Communication connection failure") is not broken, so the step is started again.
node_checks::begin() {
    local -r folder="$1"
    local -i tries
    for ((tries = 1; ; tries++)); do
        [[ -n "${steps_pid[kit-preflight]:-}" ]] || node_checks::start "${folder}"
        node_checks::await "$2" node_checks::has_folders kit-preflight
        if node_checks::has_folders || ((tries == node_checks_tries || EPOCHSECONDS + 2 >= $2)) || [[ -n "${signals_got}" ]]; then
            return 0
        fi
        log::info "the preflight did not begin on every node; once more in 2 s"
        # The tasks of other nodes may still be there.
        steps::end_orphan kit-preflight
        sleep 2
    done
}

# Prints the extra seconds for reading the images completely, which a node does once: at 50 MB/s.
node_checks::reading_s() {
    local word
    local -i bytes=0
    for word in "${KIT_PREFLIGHT_ARGV[@]}"; do
        [[ "${word}" != size=* ]] || bytes+="${word#size=}"
    done
    printf '%d' $((bytes / 50000000))
}

# node_checks::await DEADLINE ENOUGH STEP…: waits until each step has ended or the command ENOUGH succeeds. Ends a step that hangs
# at the deadline.
node_checks::await() {
    local -ri deadline="$1"
    local -r enough="$2"
    local name
    shift 2
    for name in "$@"; do
        while [[ -n "${steps_pid[${name}]:-}" ]] && kill -0 "${steps_pid[${name}]}" 2>/dev/null; do
            ! "${enough}" || return 0
            if ((EPOCHSECONDS >= deadline)) || [[ -n "${signals_got}" ]]; then
                node_checks_timed_out=1
                steps::end 50 "${name}"
                continue 2
            fi
            sleep 0.05
        done
        steps::forget "${name}"
    done
}

# Whether the preflight has made its folders on every node. It reports them before the slow checks.
node_checks::has_folders() {
    local -a made
    mapfile -t made < <(compgen -G "${KIT_RUN_DIR}/state/preflight/*.folders")
    ((${#made[@]} >= ${#nodes_all[@]}))
}

# Whether the container is started once on every node: by a step of its own, or by the preflight, which has its command after a `--`.
node_checks::probes() {
    local word
    ((${#KIT_PROBE_ARGV[@]} == 0)) || return 0
    for word in "${KIT_PREFLIGHT_ARGV[@]}"; do
        [[ "${word}" != -- ]] || return 0
    done
    return 1
}

# node_checks::judge FOLDER CHECK…: names the nodes where one of these checks failed or gave no answer.
node_checks::judge() {
    local -r folder="$1"
    shift
    local name check
    local -a failed=()
    for name in "${nodes_all[@]}"; do
        for check in "$@"; do
            [[ "${check}" != probe ]] || node_checks::probes || continue
            if [[ ! -e "${folder}/${name}.${check}.ok" ]]; then
                failed+=("${name}")
                [[ -s "${folder}/${name}.${check}.failed" ]] || node_checks::say_silent "${name}" "${check}"
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
    node_checks::show "${folder}" "${failed[@]}"
    if ((${#nodes_all[@]} - ${#failed[@]} >= KIT_NODES)); then
        log::info "continuing with the spare nodes"
        nodes::choose
        return $?
    fi
    if [[ "${KIT_PREFLIGHT_ON_FAILURE}" == exclude ]]; then
        node_checks::avoid "${folder}" "${failed[@]}"
    fi
    log::error "no rank was started"
    return "${node_checks_failed_code}"
}

# node_checks::say_silent NODE CHECK: reports that the check wrote no report.
node_checks::say_silent() {
    local said="no answer within ${KIT_PREFLIGHT_TIMEOUT} s"
    ((node_checks_timed_out)) || said="the step ended without a report"
    log::error "$1: $2: ${said}; the end of ${KIT_RUN_DIR}/logs/preflight.log:"
    tail --lines=5 -- "${KIT_RUN_DIR}/logs/preflight.log" 2>/dev/null | sed 's/^/  | /' >&2
}

node_checks::show() {
    local -r folder="$1"
    shift
    local name
    for name in "$@"; do
        cat -- "${folder}/${name}".*.failed 2>/dev/null | sed 's/^/  | /' >&2
    done
}

# Adds nodes to those that `kit submit` avoids for a day (`kit nodes` lists and forgets them). This job asks for others at once.
node_checks::avoid() {
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

# Runs one all-reduce over all ranks of each main role, with the launcher and in the container that the training will use.
node_checks::all_reduce() {
    ((KIT_ALL_REDUCE_TIMEOUT)) || return 0
    local -i i
    nodes::choose_master_port || return 1
    endpoints::place || return 1
    for ((i = 0; i < KIT_STEPS; i++)); do
        local -n of="KIT_STEP_${i}"
        [[ "${of[policy]}" != main ]] || node_checks::all_reduce_of "${i}" || return $?
    done
}

node_checks::all_reduce_of() {
    local -n of="KIT_STEP_$1"
    local -r name="${of[name]}"
    local -i ended=0
    roles::start "$1" KIT_PROGRAM_FILE=all-reduce.sh
    steps::start_monitor
    local -ri deadline=$((EPOCHSECONDS + KIT_ALL_REDUCE_TIMEOUT))
    until steps::ended "${name}"; do
        if ((EPOCHSECONDS >= deadline)) || [[ -n "${signals_got}" ]]; then
            log::error "the all-reduce over ${of[ranks]} ranks did not end within ${KIT_ALL_REDUCE_TIMEOUT} s; see ${KIT_RUN_DIR}/logs"
            steps::end 50 "${name}"
            return "${node_checks_failed_code}"
        fi
        sleep 0.05
    done
    ((steps_code)) || return 0
    failures::explain 1 "${name}"
    log::error "the all-reduce over ${of[ranks]} ranks failed"
    return "${node_checks_failed_code}"
}
