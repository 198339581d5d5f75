# shellcheck shell=bash
# The end of a role: what it means for the others, by its policy.

ends::on_end() {
    local -n of="KIT_STEP_$1"
    local -r name="${of[name]}"
    local -i code
    code="$(failures::code_of "${name}-${roles_start[${name}]}" "$2")"
    [[ -z "${of[folder]}" ]] || log::info "role ${name} has ended, with ${code}"
    # Of a preemption with grace only the steps hear.
    if ((code)) && [[ -z "${got_signal}" ]] && retry::preempted; then
        got_signal=TERM got_slurms_term=1
    fi
    if [[ -n "${got_signal}" ]]; then
        roles_state["${name}"]=ended
        [[ "${of[policy]}" == service ]] || ((roles_code)) || roles_code="${code}"
    elif ((code == 0)) && [[ "${of[policy]}" != service ]]; then
        roles_state["${name}"]=ended
    else
        ends::on_death "$1" "${code}"
    fi
}

ends::on_death() {
    local -n of="KIT_STEP_$1"
    local -r name="${of[name]}"
    local -i code="$2"
    ((EPOCHSECONDS - roles_since[${name}] < roles_sound_after)) || roles_restarts["${name}"]=0
    if ((roles_restarts[${name}] < of[restart])) && ends::has_nodes "$1"; then
        local -i pause=$((2 ** roles_restarts[${name}]))
        ((pause <= 60)) || pause=60
        failures::show "${name}-${roles_start[${name}]}" "${code}" "${name}"
        failures::retire "${name}-${roles_start[${name}]}"
        roles_restarts["${name}"]=$((roles_restarts[${name}] + 1))
        roles_state["${name}"]=waiting roles_due["${name}"]=$((EPOCHSECONDS + pause))
        log::info "role ${name}: restart ${roles_restarts[${name}]} of ${of[restart]} in ${pause} s"
        events::record restart role "${name}" exit_code "${code}"
    elif [[ "${of[policy]}" == replica ]]; then
        ends::lose "$1" "${code}"
    else
        # A service that ends well has let the others down all the same.
        ends::fail "${name}" "$((code ? code : 1))"
    fi
}

# Whether the nodes of a role are still there, a spare in the place of one that is not. A service stays where the others look for it.
ends::has_nodes() {
    local -n of="KIT_STEP_$1"
    local name
    KIT_NODE_NAMES="${roles_nodes[${of[name]}]}" nodes::find_lost
    for name in ${roles_nodes[${of[name]}]}; do
        if [[ " ${nodes_bad[*]} " == *" ${name} "* ]]; then
            [[ "${of[policy]}" != service ]] && nodes::replace "${name}" || return 1
        fi
    done
    [[ -z "${of[folder]}" ]] || where::place_one "$1"
}

# The others go on while there are enough of them.
ends::lose() {
    local -n of="KIT_STEP_$1"
    local -r name="${of[name]}"
    local -i left=0 i
    roles_state["${name}"]=lost
    for ((i = 0; i < KIT_STEPS; i++)); do
        local -n other="KIT_STEP_${i}"
        [[ "${other[policy]}" == replica && "${roles_state[${other[name]}]}" != lost ]] && left+=1
    done
    if ((left < of[least])); then
        log::error "${left} replicas are left; the job wants ${of[least]}"
        ends::fail "${name}" "$2"
        return 0
    fi
    failures::show "${name}-${roles_start[${name}]}" "$2" "${name}"
    failures::retire "${name}-${roles_start[${name}]}"
    log::error "role ${name} is given up; ${left} others go on"
    events::record lost role "${name}" exit_code "$2"
}

ends::fail() {
    [[ -z "${roles_over}" ]] || return 0
    roles_over=1 roles_failed="$1" roles_code="$2"
}

# The job is over when no role is left that it is for: a replica that waits to come back is not, once others have finished.
ends::judge() {
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
    ((working || (waiting && !finished))) || roles_over=1
}

ends::stop_rest() {
    local -a rest=()
    local name
    for name in "${!roles_state[@]}"; do
        [[ -z "${steps_pid[${name}]:-}" ]] || rest+=("${name}")
    done
    ((${#rest[@]})) || return 0
    log::info "stopping ${rest[*]}"
    steps::end 100 "${rest[@]}"
}

# A rank has failed and the others of its role did not listen, or a node is lost: the role's step has to go.
ends::doom() {
    local name
    for name in "${!roles_state[@]}"; do
        [[ -n "${steps_pid[${name}]:-}" ]] || continue
        if failures::any "${name}-${roles_start[${name}]}" || nodes::lost ${roles_nodes[${name}]} >/dev/null; then
            steps_deadline_of["${name}"]="${EPOCHSECONDS}"
        fi
    done
}
