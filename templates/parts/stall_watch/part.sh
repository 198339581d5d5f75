# shellcheck shell=bash
# Detects stalled ranks while the job runs. The loop reads the last line of each node's collector (rank_progress.sh), and stall.awk
# judges the lines. It does not ask Slurm. At an alarm it names the rank and collects evidence of every rank. If there is no
# progress for another KIT_PATIENCE seconds, it tells the batch script by USR2 to end the step.

# Seconds between looks, on few nodes and on more than stall_watch_wide nodes; how many alarms of a run get evidence.
readonly stall_watch_tick=2 stall_watch_tick_wide=5 stall_watch_wide=64 stall_watch_most=5
# Evidence of one node takes 20 s at most. The start of the step comes on top of that.
readonly stall_watch_evidence_s=40
readonly stall_watch_file="${KIT_RUN_DIR}/state/stalled"
# Steps that were ended because of a stall.
declare -gA stall_watch_ended=()

stall_watch::before_attempt() {
    rm -f -- "${stall_watch_file}"
    stall_watch_ended=()
    [[ -n "${KIT_STALL}" ]] || return 0
    local now
    clock::now now
    loops::start stall_watch stall_watch::loop "$$" "${now}"
}

stall_watch::after_attempt() {
    loops::stop stall_watch
}

# Ends the step that collects evidence, which the batch script does not wait for, and removes its incomplete files.
stall_watch::stopped() {
    compgen -G "${KIT_RUN_DIR}/state/stall-*/*.new" >/dev/null || compgen -G "${KIT_RUN_DIR}/state/stall-*/*/*.new" >/dev/null || return 0
    steps::signal KILL kit-evidence
    local -i tenths
    for ((tenths = 0; tenths < 30; tenths++)); do
        [[ -n "$(steps::ids kit-evidence)" ]] || break
        sleep 0.1
    done
    rm -f -- "${KIT_RUN_DIR}"/state/stall-*/*.new "${KIT_RUN_DIR}"/state/stall-*/*/*.new
}

# Prints how far the ranks have come.
stall_watch::furthest() {
    stall_watch::judge 0 0 0
}

# stall_watch::judge SINCE SECONDS LEAST: prints the judgement of stall.awk.
stall_watch::judge() {
    local -a files
    local now
    files=("${KIT_RUN_DIR}"/monitor/slurm-"${SLURM_JOB_ID}".*.progress)
    [[ -e "${files[0]}" ]] || return 0
    clock::now now
    { stat --format='@mtime %Y %n' -- "${files[@]}"; tail -v -n 1 -- "${files[@]}"; } 2>/dev/null \
        | awk -v now="${now}" -v since="$1" -v seconds="$2" -v least="$3" -f "${KIT_RUN_DIR}/lib/stall.awk"
}

# stall_watch::loop BATCH SINCE
stall_watch::loop() {
    local -r batch="$1" since="$2"
    # The alarm: since when, its number, how long the ranks had been idle. least: seconds before which there is no other one.
    local -i begun=0 number=0 told=0 least=0 tick=stall_watch_tick
    local seconds=0 furthest="" before="" rule role rank node step phase idle waiting count others
    [[ "${KIT_STALL}" == auto ]] || seconds="${KIT_STALL}"
    ((KIT_NODES <= stall_watch_wide)) || tick=stall_watch_tick_wide
    while loops::pause "${tick}"; do
        stall_watch::say_taken
        stall_watch::look
        if [[ -z "${rule}" ]]; then
            ((!begun)) || stall_watch::withdraw
        elif ((!begun)); then
            begun=EPOCHSECONDS told=idle before="${furthest}"
            number="$(stall_watch::next)"
            stall_watch::say
            ((number > stall_watch_most)) || stall_watch::collect "${number}"
        elif [[ "${furthest}" != "${before}" ]]; then
            # Some rank makes progress, so the patience starts again.
            begun=EPOCHSECONDS told=idle before="${furthest}"
        # A program that reports nothing is not ended: its silence proves nothing.
        elif ((EPOCHSECONDS - begun >= KIT_PATIENCE)) && [[ "${KIT_ON_STALL}" != report && "${rule}" != @(stalled-silent|observed-slow) ]]; then
            stall_watch::ask_for_end
        fi
    done
}

# Sets the loop's furthest, and its rule and the fields of an alarm, if there is one.
stall_watch::look() {
    local said
    said="$(stall_watch::judge "${since}" "${seconds}" "${least}")"
    { read -r _ furthest; rule=""; read -r rule role rank node step phase idle waiting count others; } <<<"${said}"
    parts::call judge_stall
    # A rank's report may hold any text.
    numbers::keep idle
}

# The loop's alarm was wrong, or the ranks have recovered. What took this long may take this long again.
stall_watch::withdraw() {
    local -i took=$((EPOCHSECONDS - begun + told))
    ((2 * took < least)) || least=$((2 * took))
    log::info "the ranks continue, at step ${furthest/#-/unknown}; from now on it takes ${least} s to call them stalled"
    events::record progress number "${number}" step "${furthest}"
    begun=0
}

# Tells the batch script to end the step of the loop's alarm.
stall_watch::ask_for_end() {
    printf '%s %s %s %d\n' "${role}" "${node}" "${others}" "${idle}" >"${stall_watch_file}.new"
    mv -f -- "${stall_watch_file}.new" "${stall_watch_file}"
    kill -USR2 "${batch}" 2>/dev/null
    # The batch script ends the step within seconds. A second request would hit the next step.
    begun=EPOCHSECONDS
}

# Reports nodes on which another user has made the folder of the ranks' reports first: no stall there can be found.
stall_watch::say_taken() {
    local file owner folder
    for file in "${KIT_RUN_DIR}"/state/taken-*; do
        [[ -f "${file}" && "${file}" != *.new ]] || continue
        owner="" folder=""
        read -r owner folder <"${file}"
        rm -f -- "${file}"
        log::error "node ${file##*/taken-}: ${folder} belongs to ${owner}, so the ranks cannot report there: a stall is not found"
        events::record unwatched node "${file##*/taken-}" owner "${owner//[^A-Za-z0-9_.-]/?}"
    done
}

stall_watch::next() {
    local -a before
    mapfile -t before < <(compgen -G "${KIT_RUN_DIR}/state/stall-*")
    printf '%d' "$((${#before[@]} + 1))"
}

# Reports the stall. Uses the caller's number and the fields that stall.awk printed.
stall_watch::say() {
    local who="role ${role}: rank ${rank} on ${node}"
    who="${who#role -: }"
    mkdir -p -- "${KIT_RUN_DIR}/state/stall-${number}"
    case "${rule}" in
        stalled-together) log::error "all ${count} ranks are stalled at step ${step} (${phase}), for ${idle} s" ;;
        stalled-silent) log::error "nothing of the ranks has moved for ${idle} s: no CPU time, no output" ;;
        observed-*) parts::call say_stall ;;
        stalled-node) log::error "node ${node} says nothing any more, and the ranks are stalled" ;;
        *) log::error "${who} is stalled at step ${step} (${phase}), for ${idle} s; ${waiting} ranks wait for it" ;;
    esac
    log::info "evidence: state/stall-${number}; 'kit why ${KIT_RUN_DIR##*/}' reads it"
    events::record stall number "${number}" rule "${rule}" role "${role#-}" rank "${rank}" node "${node}" step "${step}" phase "${phase}" \
        idle "${idle}" waiting "${waiting}" count "${count}"
    parts::call event
}

# stall_watch::collect NUMBER: collects evidence from every rank, by a separate step on their nodes. Its failure is not a fault of
# the run.
stall_watch::collect() {
    local -a nodes lost=()
    read -ra nodes <<<"${KIT_NODE_NAMES}"
    if ((KIT_OUTLIVES)) && nodes::look; then
        mapfile -t lost < <(nodes::lost "${nodes[@]}")
        mapfile -t nodes < <(comm -23 <(printf '%s\n' "${nodes[@]}" | sort) <(printf '%s\n' "${lost[@]}" | sort))
    fi
    ((${#nodes[@]})) || return 0
    timeout --kill-after=5 "${stall_watch_evidence_s}" "${KIT_EVIDENCE_ARGV[0]}" --nodes="${#nodes[@]}" --ntasks="${#nodes[@]}" \
        --nodelist="$(IFS=,; printf '%s' "${nodes[*]}")" "${environment_share[@]}" "${KIT_EVIDENCE_ARGV[@]:1}" \
        "${KIT_RUN_DIR}/state/stall-$1" </dev/null >/dev/null 2>&1 \
        || log::info "not every node gave its evidence of the stall"
    # No more evidence comes after this.
    : >"${KIT_RUN_DIR}/state/stall-$1/complete"
}

# Called by the batch script at USR2: ends the steps whose ranks have stalled for too long.
stall_watch::trouble() {
    local role node others idle
    local -i i
    [[ -r "${stall_watch_file}" ]] && read -r role node others idle <"${stall_watch_file}" || return 0
    rm -f -- "${stall_watch_file}"
    for ((i = 0; i < KIT_STEPS; i++)); do
        local -n of="KIT_STEP_${i}"
        [[ ("${role}" == - || "${role}" == "${of[name]}") && -n "${steps_pid[${of[name]}]:-}" ]] || continue
        steps::doom "${of[name]}" "no progress for ${idle} s"
        stall_watch_ended["${of[name]}"]="${node}${others:+,${others#-}}"
    done
}

# stall_watch::has_ended ROLE: whether its step was ended because of a stall.
stall_watch::has_ended() {
    [[ -n "${stall_watch_ended[$1]:-}" ]]
}

# stall_watch::role_ended ROLE: changes the caller's code.
stall_watch::role_ended() {
    ((code)) && stall_watch::has_ended "$1" || return 0
    code="${failures_stalled_code}"
    [[ "${KIT_ON_STALL}" != restart ]] || stall_watch::leave_out "$1"
}

# stall_watch::leave_out ROLE: leaves out the nodes that the others waited for, as far as there are spares.
stall_watch::leave_out() {
    local name
    for name in ${stall_watch_ended[$1]//,/ }; do
        ((${#nodes_all[@]} - ${#nodes_bad[@]} > KIT_NODES)) || return 0
        nodes::give_up "${name}" "node ${name} is left out: the others waited for a rank on it"
    done
}
