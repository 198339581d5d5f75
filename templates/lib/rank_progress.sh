# shellcheck shell=bash
# What the ranks of this node report (kit_rank.py), collected: one line a look for all of them, in one file a node, whatever their number;
# and how many seconds each process of a rank has spent on what, in a file that is written anew.

# Seconds between looks; and how long nothing new is left out, so that a reader can tell a quiet node from a dead collector.
# The seconds spent are written once every so often, and when the monitor ends.
readonly rank_progress_every=5 rank_progress_quiet=30 rank_progress_spent_every=30
rank_progress_folder=""

# rank_progress::begin: the folder that ranks write to. They write nothing where there is none.
rank_progress::begin() {
    rank_progress_folder="/dev/shm/kit-${EUID}-${SLURM_JOB_ID}"
    # What a collector that was killed has left, of jobs that are long over.
    find /dev/shm -maxdepth 1 -user "${EUID}" -name "kit-${EUID}-*" -mtime +1 -exec rm -rf -- {} + 2>/dev/null
    mkdir -m 0700 -- "${rank_progress_folder}" 2>/dev/null || [[ -O "${rank_progress_folder}" && ! -L "${rank_progress_folder}" ]] || return 1
    # Held while a collector lives: where Slurm killed it with a lost node, the ranks that end find the lock free and remove the folder.
    exec {rank_progress_fd}<"${rank_progress_folder}"
    flock --nonblock "${rank_progress_fd}" || true
}

rank_progress::end() {
    [[ -z "${rank_progress_folder}" ]] || rm -rf -- "${rank_progress_folder}"
}

# rank_progress::loop FILE: until it is told to end, which is its last look, or the monitor that started it is gone.
rank_progress::loop() {
    local -r file="$1"
    local line last=""
    local -i wrote=0 spent=0
    trap 'rank_progress::look; rank_progress::spent; rank_progress::end; exit 0' TERM HUP INT
    while kill -0 "$$" 2>/dev/null; do
        rank_progress::look
        if ((EPOCHSECONDS - spent >= rank_progress_spent_every)); then
            rank_progress::spent
            spent=EPOCHSECONDS
        fi
        # The trap is not kept waiting: `wait` ends at a signal, and a command does not.
        sleep "${rank_progress_every}" {rank_progress_fd}<&- &
        wait "$!"
    done
    rank_progress::end
}

# Of each rank `ROLE@RANK STEP PHASE SINCE TOOK EVERY`, behind tabs. The caller's: file, line, last, wrote.
rank_progress::look() {
    local path text
    line=""
    for path in "${rank_progress_folder}"/*@*; do
        # Behind a ~ is what a process left that is gone.
        [[ -r "${path}" && "${path}" != *~* ]] || continue
        IFS= read -r text <"${path}" 2>/dev/null || continue
        read -r text <<<"${text}"
        line+=$'\t'"${path##*/} ${text}"
    done
    [[ -n "${line}" ]] || return 0
    [[ "${line}" != "${last}" ]] || ((EPOCHSECONDS - wrote >= rank_progress_quiet)) || return 0
    printf '%s%s\n' "${EPOCHREALTIME/,/.}" "${line}" >>"${file}" && last="${line}" wrote=EPOCHSECONDS
}

# A line for each process: `TIME<tab>ROLE@RANK <what rank_progress::look has><tab>ATTEMPT BEGAN WORKER ENDED FIRST SECONDS…`. Each start of the
# job has a file of its own. Moved into place, so that a reader finds all of it.
rank_progress::spent() {
    local -r to="${file%.progress}.${SLURM_RESTART_COUNT:-0}.spent"
    local path text more name
    for path in "${rank_progress_folder}"/*@*; do
        { IFS= read -r text && IFS= read -r more; } 2>/dev/null <"${path}" || continue
        read -r text <<<"${text}"
        read -r more <<<"${more}"
        name="${path##*/}"
        printf '%s\t%s %s\t%s\n' "${EPOCHREALTIME/,/.}" "${name%%~*}" "${text}" "${more}"
    done >"${to}.new" && mv -f -- "${to}.new" "${to}"
}
