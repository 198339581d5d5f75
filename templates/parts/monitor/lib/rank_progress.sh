# shellcheck shell=bash
# Collects the reports of this node's ranks (kit_rank.py). Each look writes one line for all ranks, into one file for each node. A
# second file, which is rewritten, holds the seconds that each process of a rank has spent in each phase.

# Seconds between looks, and between lines. Where a rank has reported nothing for eight seconds, every look is written, because a
# stall may be near. A line that does not change is still written for a minute. After that it is written only every
# rank_progress_quiet seconds, so that a reader can tell a quiet node from a dead collector. The seconds spent are written at their
# own interval, and when the monitor ends.
readonly rank_progress_every=2 rank_progress_lines=6 rank_progress_late=8 rank_progress_soon=60 rank_progress_quiet=30 rank_progress_spent_every=30
# Where no rank reports anything, its processes are examined at this interval, and not before: each look reads some files of /proc
# for each process of the node.
readonly rank_progress_signs_every=30
# Once a rank has been saving for this many seconds, its written bytes are read. A rank that writes this many bytes between two
# looks is not stalled, however short its earlier saves were. Heartbeats and lines of a log come to less.
readonly rank_progress_saves=4 rank_progress_written=65536
declare -A rank_progress_bytes=() rank_progress_wrote=()
rank_progress_folder=""

# rank_progress::begin: makes the folder that ranks write to. Without the folder they write nothing.
rank_progress::begin() {
    rank_progress_folder="/dev/shm/kit-${EUID}-${SLURM_JOB_ID}"
    rank_progress::sweep
    mkdir -m 0700 -- "${rank_progress_folder}" 2>/dev/null || [[ -O "${rank_progress_folder}" && ! -L "${rank_progress_folder}" ]] || return 1
    # The lock is held while a collector lives. If Slurm killed it with a lost node, ranks that end find the lock free and remove
    # the folder.
    exec {rank_progress_fd}<"${rank_progress_folder}"
    flock --nonblock "${rank_progress_fd}" || true
}

# Removes what killed collectors have left: folders older than some minutes whose lock is free.
rank_progress::sweep() {
    local folder fd
    while IFS= read -r -d '' folder; do
        { exec {fd}<"${folder}"; } 2>/dev/null || continue
        ! flock --nonblock "${fd}" || rm -rf -- "${folder}"
        exec {fd}<&-
    done < <(find /dev/shm -maxdepth 1 -type d -user "${EUID}" \( -name "kit-${EUID}-*" -o -name "kit-memory-${EUID}-*" \) -mmin +10 -print0 2>/dev/null)
}

rank_progress::end() {
    [[ -z "${rank_progress_folder}" ]] || rm -rf -- "${rank_progress_folder}"
}

# Looks once more and removes the folder. Only at the reports, so that the end of a job does not wait for a look at all processes.
rank_progress::finish() {
    [[ -O "${rank_progress_folder}" && ! -L "${rank_progress_folder}" ]] || return 0
    looked=EPOCHSECONDS wrote=0
    rank_progress::look
    rank_progress::spent
    rank_progress::end
}

# rank_progress::loop FILE: makes the folder, and looks until it is told to end. Returns 1 where the folder is somebody else's.
rank_progress::loop() {
    local -r file="$1"
    local line last=""
    local -i wrote=0 spent=0 changed=0 looked=EPOCHSECONDS moved=0
    local signs=""
    # Before the folder is there: whenever the signal comes, none is left.
    trap 'rank_progress::finish; exit 0' TERM HUP INT
    rank_progress::begin || return 1
    while true; do
        rank_progress::look
        if ((EPOCHSECONDS - spent >= rank_progress_spent_every)); then
            rank_progress::spent
            spent=EPOCHSECONDS
        fi
        # Run it in the background: a signal ends `wait` at once, but not a command, and the trap would have to wait.
        sleep "${rank_progress_every}" {rank_progress_fd}<&- &
        wait "$!"
    done
}

# Writes for each rank, after a tab, `ROLE@RANK STEP PHASE SINCE TOOK EVERY LONGEST WAITED READ SLOWEST`; `@quiet SECONDS` where no
# rank reports anything. SINCE is the time of the last report, or for a rank that saves the time when it was last seen to write.
# Uses the caller's file, line, last, wrote, changed, looked, moved and signs.
rank_progress::look() {
    local path name step phase since rest now
    local -i late=0
    local -a names=()
    local -A does=() reported=() figures=() saving=()
    line=""
    for path in "${rank_progress_folder}"/*@*; do
        # A name with a ~ is the report of a process that is gone.
        [[ -r "${path}" && "${path}" != *~* ]] || continue
        read -r step phase since rest <"${path}" 2>/dev/null || continue
        # Programs in a container write these files; this script runs on the node.
        [[ "${since}" =~ ^[1-9][0-9]{0,11}(\.[0-9]*)?$ ]] || continue
        name="${path##*/}"
        names+=("${name}") does["${name}"]="${step} ${phase}" reported["${name}"]="${since}" figures["${name}"]="${rest}"
        [[ "${phase}" != save ]] || ((EPOCHSECONDS - ${since%.*} < rank_progress_saves)) || saving["${name}"]="${since}"
    done
    ((!${#saving[@]})) || rank_progress::look_who_writes
    for name in "${names[@]}"; do
        since="${saving[${name}]:-${reported[${name}]}}"
        line+=$'\t'"${name} ${does[${name}]} ${since} ${figures[${name}]}"
        ((EPOCHSECONDS - ${since%.*} < rank_progress_late)) || late=1
    done
    if [[ -z "${line}" ]]; then
        rank_progress::look_for_signs
    elif ((!late && EPOCHSECONDS - wrote < rank_progress_lines)); then
        return 0
    elif [[ "${line}" != "${last}" ]]; then
        changed=EPOCHSECONDS
    elif ((EPOCHSECONDS - changed > rank_progress_soon && EPOCHSECONDS - wrote < rank_progress_quiet)); then
        return 0
    fi
    [[ -n "${line}" ]] || return 0
    clock::now now
    printf '%s%s\n' "${now}" "${line}" >>"${file}" && last="${line}" wrote=EPOCHSECONDS
}

# Sets the caller's saving: the time of each rank's last report, or of its last write that was seen since.
rank_progress::look_who_writes() {
    local name now
    local -A bytes=()
    rank_progress::bytes_of_ranks
    for name in "${!saving[@]}"; do
        if [[ "${rank_progress_bytes[${name}]:-}" != "${saving[${name}]} "* ]]; then
            # The first look at this save.
            rank_progress_wrote["${name}"]="${saving[${name}]}"
        elif ((${bytes[${name}]:-0} - ${rank_progress_bytes[${name}]#* } >= rank_progress_written)); then
            clock::now now
            rank_progress_wrote["${name}"]="${now}"
        fi
        rank_progress_bytes["${name}"]="${saving[${name}]} ${bytes[${name}]:-0}"
        saving["${name}"]="${rank_progress_wrote[${name}]}"
    done
}

# Writes a line for each process: `TIME<tab>ROLE@RANK <fields of rank_progress::look><tab>ATTEMPT BEGAN WORKER ENDED FIRST
# SECONDS…`. Each start of the job has its own file, if a rank reports. It is renamed into place, so that a reader always finds a
# complete file.
rank_progress::spent() {
    local -r to="${file%.progress}.${SLURM_RESTART_COUNT:-0}.spent"
    local path text more name lines="" now
    clock::now now
    for path in "${rank_progress_folder}"/*@*; do
        { IFS= read -r text && IFS= read -r more; } 2>/dev/null <"${path}" || continue
        read -r text <<<"${text}"
        read -r more <<<"${more}"
        name="${path##*/}"
        printf -v lines '%s%s\t%s %s\t%s\n' "${lines}" "${now}" "${name%%~*}" "${text}" "${more}"
    done
    [[ -z "${lines}" ]] || { printf '%s' "${lines}" >"${to}.new" && mv -f -- "${to}.new" "${to}"; }
}

# Measures how long the ranks of this node have used less than a hundredth of a CPU, written nothing and left its GPUs idle.
rank_progress::look_for_signs() {
    local -i ticks=0 written=0 seconds busy=0
    ((EPOCHSECONDS - looked >= rank_progress_signs_every)) || return 0
    seconds=$((EPOCHSECONDS - looked))
    looked=EPOCHSECONDS
    rank_progress::sum_up || return 0
    if command -v nvidia-smi >/dev/null; then
        busy="$(timeout 10 nvidia-smi --query-gpu=utilization.gpu --format=csv,noheader,nounits 2>/dev/null | awk '$1 > 0 { n++ } END { print n + 0 }')"
    fi
    # A tick is a hundredth of a second. When a process ends, its numbers disappear, and that is also a sign of life.
    if [[ -z "${signs}" ]] || ((busy || written != ${signs#* } || ticks < ${signs% *} || ticks - ${signs% *} > seconds)); then
        moved=EPOCHSECONDS
    fi
    signs="${ticks} ${written}"
    line=$'\t'"@quiet $((EPOCHSECONDS - moved))"
}

# Sums the bytes that the processes of each rank on this node have written, by ROLE@RANK, into the caller's bytes.
rank_progress::bytes_of_ranks() {
    local key pid name count
    local -A processes=()
    rank_processes::find
    for key in "${!processes[@]}"; do
        for pid in ${processes[${key}]}; do
            while read -r name count; do
                [[ "${name}" != wchar: ]] || bytes["${key}"]=$((${bytes[${key}]:-0} + count))
            done 2>/dev/null <"/proc/${pid}/io"
        done
    done
}

# Sums over the ranks' processes on this node: their CPU time, and the bytes written to files and sockets, as proc(5) counts them.
# Returns 1 where there are none, or they are not visible. Uses the caller's ticks and written.
rank_progress::sum_up() {
    local pid name count text
    local -a fields
    local -A processes=()
    rank_processes::find || return 1
    for pid in ${processes[*]}; do
        text=""
        { IFS= read -r -d '' text <"/proc/${pid}/stat"; } 2>/dev/null
        read -ra fields <<<"${text##*) }"
        ticks+=$((${fields[11]:-0} + ${fields[12]:-0}))
        while read -r name count; do
            [[ "${name}" != wchar: ]] || written+="${count}"
        done 2>/dev/null <"/proc/${pid}/io"
    done
}
