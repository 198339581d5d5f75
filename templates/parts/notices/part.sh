# shellcheck shell=bash
# Sends notices from the batch script (notify.by = "batch"). A program of the kit sends the events in events.jsonl that were not
# sent yet. It gets a time limit, and its failure only makes a line in the log, so no endpoint can harm the run.

readonly notices_file="${KIT_RUN_DIR}/.notify"
readonly notices_s=60 notices_last_s=15

# Sends in the background. No `wait` of this script waits for it.
notices::begun() {
    notices::event
}

notices::event() {
    [[ ! -r "${notices_file}" ]] || (notices::send "${notices_s}" &)
}

# Sends at the end, when Slurm kills what is left of the job. So this waits, and then removes the file with the URLs.
notices::closed() {
    [[ -r "${notices_file}" ]] || return 0
    notices::send "${notices_last_s}"
    rm -f -- "${notices_file}"
}

# notices::send SECONDS
notices::send() {
    local python line
    IFS= read -r python <"${notices_file}" || return 0
    while IFS= read -r line; do
        log::info "${line}"
    done < <(
        # -P: a file next to the job must not be taken for a module of the kit.
        timeout --kill-after=2 "$1" "${python}" -P -m kit.notices "${KIT_RUN_DIR}" </dev/null 2>/dev/null \
            || printf 'notice: not sent: %s -m kit.notices does not work on this node, or took longer than %s s\n' "${python}" "$1"
    )
}
