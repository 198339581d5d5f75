# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # names that other libraries set or read
# Roles: the programs of a run, each one Slurm step on its own nodes. A plain job is the case of one role.
#
# KIT_STEP_<i> holds the plan's values for role i, KIT_STEP_<i>_ARGV its srun, KIT_STEP_<i>_ENV the environment of this role only. A
# role waits for the roles that it needs, starts, is up once its check passes, and ends or is lost. Its policy decides what its end
# means:
#   main      the job ends well when all of these have; one that fails ends the job
#   service   must be there while a main role is, and is stopped after that
#   replica   one of several that do the same: it may die and come back while enough of the others continue

# A role that lived for ten minutes did not die of its start, so its restarts count from zero again.
readonly roles_sound_after=600

declare -A roles_state=() roles_start=() roles_since=() roles_restarts=() roles_due=()
# Roles that a signal found waiting.
declare -A roles_unstarted=()
roles_over="" roles_failed=""
declare -i roles_code=0

# Runs all roles from their first start to their last end. Returns the code of the first that failed.
roles::run() {
    local -i i
    roles_over="" roles_failed="" roles_code=0 roles_unstarted=()
    for ((i = 0; i < KIT_STEPS; i++)); do
        local -n of="KIT_STEP_${i}"
        roles_state["${of[name]}"]=waiting roles_restarts["${of[name]}"]=0 roles_due["${of[name]}"]=0
    done
    while true; do
        for ((i = 0; i < KIT_STEPS; i++)); do
            roles::look "${i}"
        done
        parts::call programs_started
        signals::ask_again
        signals::check_carried
        role_policy::judge
        [[ -z "${roles_over}" ]] || break
        steps::pause "${!roles_state[@]}"
    done
    events::record phase name teardown
    if ((!roles_code)) && role_policy::misses_work; then
        roles_code="${role_policy_unstarted_code}"
    elif ((roles_code)); then
        failures::explain "${roles_code}" "${roles_failed}"
        roles_code=$?
    fi
    role_policy::stop_rest
    return "${roles_code}"
}

# roles::set_state ROLE STATE
roles::set_state() {
    roles_state["$1"]="$2"
}

# roles::restart_in ROLE SECONDS: starts the role again after a pause.
roles::restart_in() {
    roles_restarts["$1"]=$((roles_restarts[$1] + 1))
    roles_state["$1"]=waiting roles_due["$1"]=$((EPOCHSECONDS + $2))
}

roles::forgive() {
    roles_restarts["$1"]=0
}

# roles::count_code CODE: sets the run's exit code, unless an earlier role has failed.
roles::count_code() {
    ((roles_code)) || roles_code="$1"
}

# roles::fail ROLE CODE: ends the run because this role failed.
roles::fail() {
    [[ -z "${roles_over}" ]] || return 0
    roles_over=1 roles_failed="$1" roles_code="$2"
}

roles::finish() {
    roles_over=1
}

# Prints the roles whose ranks run, without services, which stay until the others have saved.
roles::with_ranks() {
    local -i i
    for ((i = 0; i < KIT_STEPS; i++)); do
        local -n of="KIT_STEP_${i}"
        [[ "${of[policy]}" == service || -z "${steps_pid[${of[name]}]:-}" ]] || printf '%s\n' "${of[name]}"
    done
}

# Prints the nodes of these roles.
roles::nodes_of_ranks() {
    local -a names
    local name
    mapfile -t names < <(roles::with_ranks)
    for name in "${names[@]}"; do
        # shellcheck disable=SC2086 # names of nodes
        printf '%s\n' ${endpoints_nodes[${name}]}
    done | sort --unique
}

roles::running() {
    local name
    for name in "${!roles_state[@]}"; do
        [[ -z "${steps_pid[${name}]:-}" ]] || return 0
    done
    return 1
}

roles::look() {
    local -n of="KIT_STEP_$1"
    local -r name="${of[name]}"
    case "${roles_state[${name}]}" in
        waiting) roles::start_if_due "$1" ;;
        starting | up)
            if steps::ended "${name}"; then
                role_policy::on_end "$1" "${steps_code}"
            elif parts::any held; then
                role_policy::on_end "$1" "${role_policy_lost_code}"
            else
                steps::enforce_deadline "${name}"
                roles::check "$1"
            fi
            ;;
    esac
}

roles::start_if_due() {
    local -n of="KIT_STEP_$1"
    local -r name="${of[name]}"
    local needed
    if [[ -n "${signals_got}${roles_over}" ]]; then
        [[ -n "${roles_over}" ]] || roles_unstarted["${name}"]=1
        roles_state["${name}"]=ended
        return 0
    fi
    ((EPOCHSECONDS >= roles_due[${name}])) || return 0
    for needed in ${of[after]}; do
        [[ "${roles_state[${needed}]}" == up || "${roles_state[${needed}]}" == ended ]] || return 0
    done
    roles_state["${name}"]=starting roles_since["${name}"]="${EPOCHSECONDS}"
    roles::start "$1"
}

# roles::start INDEX [NAME=VALUE…]: starts the role's step, with the environment of this role and the other arguments added to it.
roles::start() {
    local -n of="KIT_STEP_$1" argv="KIT_STEP_$1_ARGV" own="KIT_STEP_$1_ENV"
    local -r name="${of[name]}"
    shift
    roles::count_start "${name}"
    failures::prepare "${name}-${roles_start[${name}]}"
    # The ranks' KIT_RESTART_COUNT is that of their role. The job's, under which kit_rank enters its reports, is their KIT_ATTEMPT.
    local -a env=("${own[@]}" "KIT_RESTART_COUNT=${roles_start[${name}]}" "KIT_ATTEMPT=${KIT_RESTART_COUNT}" "KIT_FAILURES=${failures_name}" "$@")
    if [[ -n "${of[folder]}" ]]; then
        local -n variables="KIT_ROLE_${of[variable]}"
        # shellcheck disable=SC2086 # names of nodes
        log::info "role ${name}: start ${roles_start[${name}]} on $(nodes::short ${endpoints_nodes[${name}]})"
        events::record role role "${name}" start "${roles_start[${name}]}"
        env+=("KIT_ROLE=${name}" "KIT_MASTER_ADDR=${variables[address]}" "KIT_MASTER_PORT=${variables[master]}")
    fi
    parts::any start_held "${env[@]}" && return 0
    steps::set_env "${env[@]}"
    KIT_NODE_NAMES="${endpoints_nodes[${name}]}" steps::start "${name}" "${argv[@]}"
    parts::call step_started
}

# Counts the starts of a role over the whole run, with requeues, so that programs see a number that only grows.
roles::count_start() {
    local -r file="${KIT_RUN_DIR}/state/starts-$1"
    local starts=0
    [[ -r "${file}" ]] && read -r starts <"${file}"
    numbers::keep starts
    roles_start["$1"]="${starts}"
    printf '%d\n' "$((starts + 1))" >"${file}.new" && mv -f -- "${file}.new" "${file}"
}

# A role is up as soon as it is started, unless a part looks whether it is.
roles::check() {
    local -n of="KIT_STEP_$1"
    parts::any check_role "$1" || roles::set_state "${of[name]}" up
}
