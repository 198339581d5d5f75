# shellcheck shell=bash
# Notices by the batch script (notify.by = "batch"): a program of the kit tells of what events.jsonl has and nobody was told of yet. It
# gets a time limit and its failure is a line of the log: no endpoint can harm the run.

readonly notices_file="${KIT_RUN_DIR}/.notify"
readonly notices_s=60 notices_last_s=15

# Beside the run; it belongs to no `wait` of this script.
notices::tell() {
    [[ ! -r "${notices_file}" ]] || (notices::send "${notices_s}" &)
}

# At the end Slurm kills what is left of the job: this one is waited for. The URLs go with it.
notices::tell_last() {
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
        # -P: a file beside the job is not a module of the kit's.
        timeout --kill-after=2 "$1" "${python}" -P -m kit.notices "${KIT_RUN_DIR}" </dev/null 2>/dev/null \
            || printf 'notice: not sent: %s -m kit.notices does not work on this node, or took longer than %s s\n' "${python}" "$1"
    )
}
