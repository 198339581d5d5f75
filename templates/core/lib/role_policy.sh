# shellcheck shell=bash
# The end of a role, and its effect on the other roles, by its policy.

# 128 + SIGKILL: the code of a rank whose node is lost.
readonly role_policy_lost_code=137

# 128 + SIGTERM: of a job whose work a signal kept from starting.
readonly role_policy_unstarted_code=143

role_policy::on_end() {
    local -n of="KIT_STEP_$1"
    local -r name="${of[name]}"
    local -i code
    code="$(failures::code_of "${name}-${roles_start[${name}]}" "$2")"
    if ((code)) && [[ -z "${signals_got}" ]] && retry::preempted; then
        signals::note_preemption
    fi
    if role_policy::may_have_killed "$1" "$2"; then
        code="$(failures::code_of "${name}-${roles_start[${name}]}" "$2")"
    fi
    if ! failures::any "${name}-${roles_start[${name}]}" && role_policy::lost_a_node "${name}" "${code}"; then
        code="${role_policy_lost_code}"
    fi
    parts::call role_ended "${name}"
    failures::say_restarts "${name}-${roles_start[${name}]}"
    [[ -z "${of[folder]}" ]] || log::info "role ${name} has ended, with ${code}"
    if [[ -n "${signals_got}" ]]; then
        roles::set_state "${name}" ended
        [[ "${of[policy]}" == service ]] || roles::count_code "${code}"
    elif ((code == 0)) && [[ "${of[policy]}" != service ]]; then
        roles::set_state "${name}" ended
    else
        role_policy::on_death "$1" "${code}"
    fi
}

# role_policy::may_have_killed INDEX CODE: looks for a rank that was killed with its shell, and whether there is anything to look for:
# not after a signal to the job, nor where this script itself has killed the step.
role_policy::may_have_killed() {
    (($2 == role_policy_lost_code)) || return 1
    local -n of="KIT_STEP_$1" argv="KIT_STEP_$1_ARGV"
    local -r name="${of[name]}"
    local -i tasks="${of[ranks]}"
    local word
    [[ -z "${signals_got}${steps_kill_since[${name}]:-}" ]] && ! parts::any has_ended "${name}" || return 1
    for word in "${argv[@]}"; do
        [[ "${word}" != --ntasks=* ]] || tasks="${word#*=}"
    done
    failures::find_killed "${name}-${roles_start[${name}]}" "${name}" "$2" "${of[nodes]}" "${of[ranks]}" "${tasks}" "${of[folder]:+${name}}"
}

# role_policy::lost_a_node ROLE CODE: whether the ranks were lost with their node. Where the job continues without the node
# (--no-kill), srun returns 0 for them, and 1 from Slurm 24.11 on.
role_policy::lost_a_node() {
    local lost
    ((KIT_OUTLIVES)) && nodes::look || return 1
    # shellcheck disable=SC2086 # names of nodes
    lost="$(nodes::lost ${endpoints_nodes[$1]})" || return 1
    log::error "step $1 ended with $2, and its ranks on ${lost//$'\n'/ } were lost with their node"
}

role_policy::on_death() {
    local -n of="KIT_STEP_$1"
    local -r name="${of[name]}"
    local -i code="$2"
    ((EPOCHSECONDS - roles_since[${name}] < roles_sound_after)) || roles::forgive "${name}"
    if ((roles_restarts[${name}] < of[restart])) && role_policy::has_nodes "$1"; then
        local -i pause=$((2 ** roles_restarts[${name}]))
        ((pause <= 60)) || pause=60
        failures::show "${name}-${roles_start[${name}]}" "${code}" "${name}"
        failures::retire "${name}-${roles_start[${name}]}"
        roles::restart_in "${name}" "${pause}"
        log::info "role ${name}: restart ${roles_restarts[${name}]} of ${of[restart]} in ${pause} s"
        events::record restart role "${name}" exit_code "${code}"
    elif [[ "${of[policy]}" == replica ]]; then
        role_policy::lose "$1" "${code}"
    else
        # Even a service that ends with code 0 has failed the other roles.
        roles::fail "${name}" "$((code ? code : 1))"
    fi
}

# Whether the nodes of a role are still there, or have a spare. A service keeps its nodes, because the others look for it there.
role_policy::has_nodes() {
    local -n of="KIT_STEP_$1"
    local name
    # shellcheck disable=SC2086 # names of nodes
    nodes::find_lost ${endpoints_nodes[${of[name]}]}
    for name in ${endpoints_nodes[${of[name]}]}; do
        if [[ " ${nodes_bad[*]} " == *" ${name} "* ]]; then
            [[ "${of[policy]}" != service ]] && nodes::replace "${name}" || return 1
        fi
    done
    endpoints::place "$1"
}

# Gives up a replica. The others continue while there are enough of them.
role_policy::lose() {
    local -n of="KIT_STEP_$1"
    local -r name="${of[name]}"
    local -i left=0 i
    roles::set_state "${name}" lost
    for ((i = 0; i < KIT_STEPS; i++)); do
        local -n other="KIT_STEP_${i}"
        [[ "${other[policy]}" == replica && "${roles_state[${other[name]}]}" != lost ]] && left+=1
    done
    if ((left < of[least])); then
        log::error "${left} replicas are left; the job wants ${of[least]}"
        roles::fail "${name}" "$2"
        return 0
    fi
    failures::show "${name}-${roles_start[${name}]}" "$2" "${name}"
    failures::retire "${name}-${roles_start[${name}]}"
    log::error "role ${name} is given up; ${left} others continue"
    events::record lost role "${name}" exit_code "$2"
}

# Ends the job when no role is left that must finish. A replica that waits to come back does not count once others have finished.
role_policy::judge() {
    local -i i working=0 finished=0 waiting=0
    for ((i = 0; i < KIT_STEPS; i++)); do
        local -n of="KIT_STEP_${i}"
        [[ "${of[policy]}" != service ]] || continue
        case "${roles_state[${of[name]}]}" in
            starting | up) working+=1 ;;
            ended) [[ "${of[policy]}" != replica ]] || finished+=1 ;;
            waiting) [[ "${of[policy]}" == replica ]] && waiting+=1 || working+=1 ;;
        esac
    done
    ((working || (waiting && !finished))) || roles::finish
}

# Whether the job has work that a signal kept from starting, such as ranks that waited for their lighthouse: all other roles may have ended
# well, and the job is not done. Replicas are one work: it is enough that one of them was there.
role_policy::misses_work() {
    local -i i replicas=0 unstarted=0
    local missed=""
    for ((i = 0; i < KIT_STEPS; i++)); do
        local -n of="KIT_STEP_${i}"
        case "${of[policy]}${roles_unstarted[${of[name]}]:+ unstarted}" in
            'main unstarted') missed+=" ${of[name]}" ;;
            'replica unstarted') replicas+=1 unstarted+=1 ;;
            replica) replicas+=1 ;;
        esac
    done
    ((!replicas || unstarted < replicas)) || missed+=" replicas"
    [[ -n "${missed}" ]] || return 1
    log::info "${signals_got} came before these were started:${missed}"
}

# Ends the roles that are left. Their ranks save first: they get TERM and the time that every other end gives them. Services stay
# until then.
role_policy::stop_rest() {
    local -a rest=()
    local name
    parts::any held || role_policy::let_save
    for name in "${!roles_state[@]}"; do
        [[ -z "${steps_pid[${name}]:-}" ]] || rest+=("${name}")
    done
    # Stopped ranks may start again in their step.
    ((${#rest[@]})) && ! parts::any held || return 0
    log::info "stopping ${rest[*]}"
    steps::end 100 "${rest[@]}"
}

role_policy::let_save() {
    local -a names
    local name
    mapfile -t names < <(roles::with_ranks)
    ((${#names[@]})) || return 0
    log::info "telling ${names[*]} to save and end, within ${KIT_GRACE} s"
    # A signal to the job has set its own deadline, and is on its way to the ranks.
    if [[ -z "${signals_got}" ]]; then
        steps::set_deadline "${KIT_GRACE}" "the ranks did not end within ${KIT_GRACE} s after TERM"
        signals::carry TERM "${KIT_GRACE}"
    fi
    while ((${#names[@]})); do
        for name in "${names[@]}"; do
            steps::ended "${name}" || steps::enforce_deadline "${name}"
        done
        signals::ask_again
        signals::check_carried
        mapfile -t names < <(roles::with_ranks)
        ((${#names[@]} == 0)) || steps::pause "${names[@]}"
    done
    [[ -n "${signals_got}" ]] || steps::clear_deadline
}

# Ends a role's step after a rank has failed and the others of its role did not react, or after a node is lost.
role_policy::doom() {
    local name
    ((!KIT_OUTLIVES)) || nodes::look
    # A signal that came during the look gives these ranks time to save.
    [[ -z "${signals_got}" ]] || return 0
    for name in "${!roles_state[@]}"; do
        [[ -n "${steps_pid[${name}]:-}" ]] || continue
        # shellcheck disable=SC2086 # names of nodes
        if failures::any "${name}-${roles_start[${name}]}" || nodes::lost ${endpoints_nodes[${name}]} >/dev/null; then
            steps::doom "${name}" "a rank has failed or a node is lost, and the other ranks wait for it"
        fi
    done
}
