# shellcheck shell=bash
# What the ranks of this node report (kit_rank.py), collected: one line a look for all of them, in one file a node, whatever their number.

# Seconds between looks; and how long nothing new is left out, so that a reader can tell a quiet node from a dead collector.
readonly rank_progress_every=5 rank_progress_quiet=30
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
    local -i wrote=0
    trap 'rank_progress::look; rank_progress::end; exit 0' TERM HUP INT
    while kill -0 "$$" 2>/dev/null; do
        rank_progress::look
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
        [[ -r "${path}" ]] || continue
        IFS= read -r text <"${path}" 2>/dev/null || continue
        read -r text <<<"${text}"
        line+=$'\t'"${path##*/} ${text}"
    done
    [[ -n "${line}" ]] || return 0
    [[ "${line}" != "${last}" ]] || ((EPOCHSECONDS - wrote >= rank_progress_quiet)) || return 0
    printf '%s%s\n' "${EPOCHREALTIME/,/.}" "${line}" >>"${file}" && last="${line}" wrote=EPOCHSECONDS
}
