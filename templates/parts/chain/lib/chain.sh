# shellcheck shell=bash
# Decides whether a later link of a chain has work left. Slurm starts a link when all links before it ended with a code other than 0.

# Exits unless the run was cut short: by a requested stop that was saved, by a signal, or without an end record.
chain::require_more() {
    local code
    code="$(chain::last_code)"
    if [[ -z "${code}" ]]; then
        log::info "the link before ended without a record; continuing from the newest checkpoint"
    elif ((code == 0)); then
        log::info "the run is done; link ${SLURM_JOB_ID} has nothing to do"
        exit 0
    elif [[ -e "${KIT_RUN_DIR}/state/stopped.json" ]] || ((code > 128 && code < 255)); then
        log::info "the link before was cut with exit code ${code}; continuing from the newest checkpoint"
    else
        log::error "the link before ended with the program's own exit code ${code}; continuing would not help"
        chain::cancel_rest
        exit "${code}"
    fi
}

# Prints the exit code in the last record of the run, or nothing where that record is not an end.
chain::last_code() {
    tail --lines=1 -- "${KIT_RUN_DIR}/state/events.jsonl" 2>/dev/null |
        sed --quiet 's/.*"event": "end".*"exit_code": "\([0-9]*\)".*/\1/p'
}

chain::cancel_rest() {
    local id
    while read -r id; do
        numbers::keep id
        if ((id && id != SLURM_JOB_ID)); then
            scancel "${id}" 2>/dev/null || true
        fi
    done <"${KIT_RUN_DIR}/state/links"
}
