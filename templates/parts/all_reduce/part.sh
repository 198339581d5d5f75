# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # names that other libraries set or read
# One all-reduce before the training (`preflight.all_reduce_s`).

# Runs one all-reduce over all ranks of each main role, with the launcher and in the container that the training will use.
all_reduce::before_ranks() {
    local -i i
    nodes::choose_master_port || return 1
    endpoints::place || return 1
    for ((i = 0; i < KIT_STEPS; i++)); do
        local -n of="KIT_STEP_${i}"
        [[ "${of[policy]}" != main ]] || all_reduce::of_role "${i}" || return $?
    done
}

all_reduce::of_role() {
    local -n of="KIT_STEP_$1"
    local -r name="${of[name]}"
    local -i ended=0
    roles::start "$1" KIT_PROGRAM_FILE=all-reduce.sh
    parts::call programs_started
    local -ri deadline=$((EPOCHSECONDS + KIT_ALL_REDUCE_TIMEOUT))
    until steps::ended "${name}"; do
        if ((EPOCHSECONDS >= deadline)) || [[ -n "${signals_got}" ]]; then
            log::error "the all-reduce over ${of[ranks]} ranks did not end within ${KIT_ALL_REDUCE_TIMEOUT} s; see ${KIT_RUN_DIR}/logs"
            steps::end 50 "${name}"
            return "${failures_refused_code}"
        fi
        sleep 0.05
    done
    ((steps_code)) || return 0
    failures::explain 1 "${name}"
    log::error "the all-reduce over ${of[ranks]} ranks failed"
    return "${failures_refused_code}"
}
