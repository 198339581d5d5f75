# shellcheck shell=bash
# Finds the rank that failed first. srun returns the highest code of all tasks. torchrun returns 1, whatever its ranks returned.
# Ranks that srun or torchrun ends afterwards have other codes. So each rank records its end, and the earliest record counts.
#
# But the times come from the clocks of several nodes. A rank that lost its connection to a killed rank may have the earlier record,
# and its exit code 1 would look like a fault of the program. So a rank that was killed alone comes first where both ends may be the
# same event. No clean-up kills a rank so early: torchrun waits 30 s after a TERM, failure_watch.sh 10 s. Slurm also kills rank.sh, which
# may still write the record. `alone` in the record's name means that rank.sh outlived its program.
#
# With torchrun's own restarts (torchrun.max_restarts) an end may be followed by another start of the rank. Until then its record is in
# the subfolder `restartable`, which the failure watch does not read. The rank's next start moves it to the subfolder `restarted`.

# Seconds by which the nodes' clocks may differ, as in preflight.clock_skew_s by default. kit/health/run_record.py has the same.
readonly failures_skew_s=5
# 128 + SIGKILL, and the seconds that rank.sh must outlive the program by. Slurm kills a step's processes within some hundredths.
readonly failures_killed_code=137 failures_alone_s=0.2
# Exit codes of a run whose ranks stalled, and of one whose nodes or image were refused before the ranks. Programs do not have
# these by convention: BSD's sysexits call the second EX_OSFILE.
readonly failures_stalled_code=76
# shellcheck disable=SC2034
readonly failures_refused_code=72
# The file of failures::record, where it is not marked yet.
failures_recorded=""
# Bytes that this script's output had before each step.
declare -A failures_output_before=()

# failures::folder ROLE-START: prints the folder for a start of a role. Folders that were dealt with begin with a dot.
failures::folder() {
    printf '%s/state/failures-%s/%s' "${KIT_RUN_DIR}" "${KIT_RESTART_COUNT}" "$1"
}

# Makes the folder. failures_name is its name for the ranks.
failures::prepare() {
    local folder
    folder="$(failures::folder "$1")"
    rm -rf -- "${folder}"
    mkdir -p -- "${folder}"
    failures_name="failures-${KIT_RESTART_COUNT}/$1"
}

# Called by the rank itself. Fails where it cannot write; then only the caller's code is known.
failures::record() {
    # The file's name repeats the values: on a full disk a file can still be created, but not written. A record that the warm process
    # made at the rank's end stays.
    local file="${KIT_RUN_DIR}/state/${KIT_FAILURES}" name now
    # Of ranks that have started again in their step.
    if [[ -r "${file}/again" ]] && read -r name <"${file}/again"; then
        file="${KIT_RUN_DIR}/state/${name}"
    fi
    file+="/rank-$1.$2"
    [[ ! -s "${file}.alone" ]] || return 0
    failures_recorded="${file}"
    [[ ! -s "${file}" ]] || return 0
    clock::now now
    printf '%s %s %s %s %s\n' "${now}" "$1" "$2" "${SLURMD_NODENAME:-$(uname -n)}" "${KIT_ROLE:-}" >"${file}"
}

# The rank of this script's own record was killed alone.
failures::note_alone() {
    # Without its container's files, a rank has no /dev/null.
    [[ -z "${failures_recorded}" ]] || mv -f -- "${failures_recorded}" "${failures_recorded}.alone" 2>&- || true
}

# failures::follow FIRST NAME: the ranks whose step began with the folder FIRST record their ends in NAME from now on.
failures::follow() {
    local -r file="${KIT_RUN_DIR}/state/$1/again"
    printf '%s\n' "$2" >"${file}.new" && mv -f -- "${file}.new" "${file}"
}

# failures::record_rank RANK CODE SIGNALLED: as failures::record, for a rank that torchrun may start again: it has restarts left, or
# the signal may come from torchrun, which stops all ranks of a node before it restarts them.
failures::record_rank() {
    local KIT_FAILURES="${KIT_FAILURES}"
    if [[ -n "${TORCHELASTIC_RUN_ID:-}" ]] \
        && ((${TORCHELASTIC_RESTART_COUNT:-0} < ${TORCHELASTIC_MAX_RESTARTS:-0} || (${TORCHELASTIC_MAX_RESTARTS:-0} && ${3:-0}))); then
        KIT_FAILURES+=/restartable
        mkdir -p -- "${KIT_RUN_DIR}/state/${KIT_FAILURES}"
    fi
    failures::record "$1" "$2" || return 1
    if (($2 == failures_killed_code)); then
        sleep "${failures_alone_s}" 2>&- || true
        failures::note_alone
    fi
}

# failures::start_again RANK: called by a rank that torchrun starts. Its earlier end does not count any more. The lines of
# torchrun-starts are the times at which torchrun has started rank 0, which is started with all others.
failures::start_again() {
    local -r folder="${KIT_RUN_DIR}/state/${KIT_FAILURES}"
    local file now
    if (($1 == 0)); then
        clock::now now
        printf '%s\n' "${now}" >>"${folder}/torchrun-starts"
    fi
    for file in "${folder}/restartable/rank-$1."*; do
        [[ -e "${file}" ]] || continue
        mkdir -p -- "${folder}/restarted"
        mv -f -- "${file}" "${folder}/restarted/${file##*/}.${EPOCHSECONDS}"
    done
}

# failures::say_restarts ROLE-START: logs how often torchrun has restarted the ranks, and the first end that made it do so.
failures::say_restarts() {
    local -r folder="$(failures::folder "$1")"
    local -a starts=()
    local rank code node role
    [[ -e "${folder}/torchrun-starts" ]] && mapfile -t starts <"${folder}/torchrun-starts"
    ((${#starts[@]} > 1)) || return 0
    read -r _ rank code node role < <(failures::sorted "${folder}/restarted")
    log::info "${role:+role ${role}: }restarts by torchrun: $((${#starts[@]} - 1))${rank:+; first, rank ${rank} on node ${node} had ended with exit code ${code}}"
}

failures::any() {
    failures::listed "$(failures::folder "$1")"
}

# failures::listed PATTERN: whether one of these folders has a record. NFS may show a listing that is up to a minute old, but reads
# a folder anew that this client has just changed.
failures::listed() {
    local folder
    for folder in $1; do
        { : >"${folder}/.look" && rm -f -- "${folder}/.look"; } 2>/dev/null
    done
    compgen -G "$1/rank-*" >/dev/null
}

failures::retire() {
    mv -f -- "$(failures::folder "$1")" "$(failures::folder ".$1")"
}

# failures::first ROLE-START: prints the earliest record, if there is one. Where torchrun has not started a rank again, its record in
# `restartable` counts, too.
failures::first() {
    local -r pattern="$(failures::folder "$1")"
    failures::sorted "${pattern}" "${pattern}/restartable" | head -n 1
}

# failures::sorted PATTERN…: prints the records in these folders, the earliest first; but first of all a rank that was killed alone,
# if the earliest ended as a rank does that lost its connection (by an exception or an abort), or was killed with its step.
failures::sorted() {
    local pattern file line alone
    for pattern in "$@"; do
        failures::listed "${pattern}" || continue
        while read -r file; do
            line="" alone=other
            # It may have got its other name just now.
            [[ -e "${file}" ]] || file+=".alone"
            [[ "${file}" != *.alone ]] || alone=alone
            read -r line 2>/dev/null <"${file}"
            printf '%s %s\n' "${alone}" "${line:-$(failures::from_name "${file}")}"
        done < <(compgen -G "${pattern}/rank-*")
    done | sort --key=2n | awk -v skew="${failures_skew_s}" -v killed="${failures_killed_code}" '
        { record[NR] = substr($0, 7) }
        NR == 1 { earliest = $2; doubted = $4 == 1 || $4 == 134 || $4 == 139 || $4 == killed }
        doubted && !first && $1 == "alone" && $2 - earliest <= skew { first = NR; print record[NR] }
        END { for (i = 1; i <= NR; i++) if (i != first) print record[i] }'
}

# Prints the record of an empty file, from its name and its time.
failures::from_name() {
    local rank code time
    IFS=. read -r rank code _ <<<"${1##*/rank-}"
    time="$(stat --format=%.6Y -- "$1")"
    printf '%s %s %s unknown\n' "${time}" "${rank}" "${code}"
}

# failures::note_output STEP: notes where srun's own messages of this step will begin, in this script's output. Only a file can be
# read again.
failures::note_output() {
    failures_output_before["$1"]=""
    [[ ! -f "/proc/$$/fd/2" ]] || failures_output_before["$1"]="$(stat --dereference --format=%s -- "/proc/$$/fd/2")"
}

# failures::find_killed ROLE-START STEP CODE NODES RANKS TASKS ROLE: finds a rank whose shell was killed, so that it recorded nothing, as where the
# kernel kills a whole task for memory. srun returns 137 for it, and ends the others. Then srun's message counts as the rank's record.
# A rank that was told to end is never the first. Without a message nobody knows who was: its record is set aside.
failures::find_killed() {
    (($3 == failures_killed_code)) || return 0
    local -r folder="$(failures::folder "$1")"
    local -i rank place each=$(($5 / $6)) on_node=$(($6 / $4))
    local first="" code node task
    local -a moved
    read -r first _ code _ < <(failures::first "$1")
    numbers::keep code
    if read -r node task < <(failures::first_that_srun_saw_killed "$2"); then
        # `kit rerun --rotate` has moved the ranks of a node.
        read -ra moved <<<"${KIT_NODE_RANKS:-}"
        numbers::keep task
        place=$((task / on_node))
        rank=$(((${moved[place]:-${place}} * on_node + task % on_node) * each))
        if ! failures::has_records "${folder}" "${rank}" "$((rank + each - 1))"; then
            # srun saw it first, whatever the nodes' clocks say.
            [[ -n "${first}" ]] || clock::now first
            awk -v first="${first}" -v rest="${rank} ${failures_killed_code} ${node} $7" \
                'BEGIN { printf "%.6f %s\n", first - 0.000001, rest }' >"${folder}/rank-${rank}.${failures_killed_code}.alone"
            return 0
        fi
    fi
    ((code == 143 || code == 138)) || return 0
    mkdir -p -- "${folder}/told"
    find "${folder}" -maxdepth 1 \( -name 'rank-*.143' -o -name 'rank-*.138' \) -exec mv -f -t "${folder}/told" -- {} +
}

# failures::has_records FOLDER FIRST LAST: whether one of these ranks recorded its end.
failures::has_records() {
    local -i rank
    for ((rank = $2; rank <= $3; rank++)); do
        ! compgen -G "$1/rank-${rank}.*" >/dev/null || return 0
    done
    return 1
}

# Prints node and task, if the first end that srun reported of this step was a kill, and not its own: it aborts a step of which a node
# does not answer, and kills the others.
failures::first_that_srun_saw_killed() {
    [[ -n "${failures_output_before[$1]:-}" ]] || return 1
    tail --bytes="+$((failures_output_before[$1] + 1))" -- "/proc/$$/fd/2" | awk '
        /^srun: (error: Aborting, |Job step aborted)/ { exit }
        /^srun: error: [^ ]+: tasks? [0-9][-,0-9]*: / {
            sub(/:$/, "", $3)
            if (/: (Killed|Out Of Memory)$/) { split($5, tasks, /[-,:]/); print $3, tasks[1] }
            exit
        }'
}

# failures::code_of ROLE-START CODE: prints the code of the rank that failed first, else the step's own.
failures::code_of() {
    local code
    read -r _ _ code _ < <(failures::first "$1")
    printf '%d' "${code:-$2}"
}

# A full disk would silence the one message that reports it. So this script reserves space for its last messages.
failures::reserve_space() {
    head -c 262144 /dev/urandom >"${KIT_RUN_DIR}/state/.reserve" 2>/dev/null || true
}

failures::release_space() {
    rm -f -- "${KIT_RUN_DIR}/state/.reserve"
}

# failures::explain CODE ROLE: names the rank that failed first of all. Returns its code, or CODE where no rank recorded one.
failures::explain() {
    local -ir step_code="$1"
    local full code
    full="$(failures::full)"
    failures::release_space
    [[ -z "${full}" ]] || log::error "no space is left where the run folder is: ${full}"
    # The ranks were killed because they stalled, which was reported already.
    ((step_code != failures_stalled_code)) || return "${step_code}"
    read -r _ _ code _ < <(failures::first '*')
    [[ -z "${code}" ]] || numbers::keep code
    if [[ -n "${signals_got}" ]] && [[ " 129 130 138 140 143 " == *" ${code} "* ]]; then
        log::info "the ranks ended after ${signals_got}, the first of them with exit code ${code}"
        return "${code}"
    fi
    failures::show '*' "${step_code}" "$2"
    return "${code:-${step_code}}"
}

# failures::show ROLE-START CODE ROLE: shows the rank that failed first, with the end of its log, else the launcher's output.
failures::show() {
    local rank code node role logs="${KIT_RUN_DIR}/logs"
    local -a said
    if read -r _ rank code node role < <(failures::first "$1"); then
        log::error "${role:+role ${role}: }rank ${rank} on node ${node} failed first, with exit code ${code}"
        # Its own log, or the files that torchrun wrote at its last start.
        mapfile -t said < <(printf '%s\n' "${logs}${role:+/${role}}/rank-${rank}".*log | sort --version-sort | tail --lines=2)
        failures::tail "${said[@]}"
        return 0
    fi
    [[ -z "$3" || ! -d "${logs}/$3" ]] || logs+="/$3"
    log::error "${3:+step $3: }the ranks ended with $2, and no rank recorded why; see ${logs}/task*.log"
    mapfile -t said < <(find "${logs}" -maxdepth 1 -name 'task-*.log' -size +0 | sort --version-sort | head -n 4)
    ((${#said[@]} == 0)) || failures::tail "${said[@]}"
}

failures::full() {
    df --output=avail,iavail,target --block-size=1K -- "${KIT_RUN_DIR}" 2>/dev/null \
        | awk 'NR == 2 && ($1 < 128 || $2 == 0) { print $3 " has " $1 " KB and " $2 " inodes left" }'
}

failures::tail() {
    tail --lines=20 -- "$@" 2>/dev/null | sed 's/^/  | /' >&2
}
