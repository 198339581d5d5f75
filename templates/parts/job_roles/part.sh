# shellcheck shell=bash
# shellcheck disable=SC2154 # names that the core's libraries set
# Roles with names: the addresses and ports by which the others find them, and the checks by which they are up.

# Exit code of a role that was not ready: EX_IOERR of BSD's sysexits, which programs do not return by convention.
readonly job_roles_not_ready_code=74
# Seconds between checks of a role: while it starts, and later. Three missing answers in a row mean that it is dead.
readonly job_roles_look_starting=1 job_roles_look_up=5 job_roles_deaf_after=3

# Address of each node; the number of ports given out. When a start of a role is checked next, and how often it has not answered.
declare -gA job_roles_addresses=() job_roles_look=() job_roles_deaf=()
declare -gi job_roles_ports=0

# job_roles::placed [INDEX]: all roles have their nodes, or this one has others. Every rank has the addresses and ports in its
# environment as KIT_ROLE_<NAME>_…, and roles.json holds the same. Ports that other roles know stay.
job_roles::placed() {
    local -i i
    (($#)) || job_roles_ports=0
    for ((i = 0; i < KIT_STEPS; i++)); do
        [[ "${1:-${i}}" == "${i}" ]] || continue
        local -n of="KIT_STEP_${i}"
        (($#)) || declare -gA "KIT_ROLE_${of[variable]}=()"
        job_roles::place "${i}" || return 1
    done
    job_roles::write
}

# Chooses a role's addresses and master port anew.
job_roles::place() {
    local -n of="KIT_STEP_$1"
    local -n variables="KIT_ROLE_${of[variable]}"
    local node port list=""
    for node in ${endpoints_nodes[${of[name]}]}; do
        [[ -n "${job_roles_addresses[${node}]:-}" ]] || job_roles_addresses["${node}"]="$(nodes::address "${node}")"
        list+="${list:+ }${job_roles_addresses[${node}]}"
    done
    variables[address]="${list%% *}" variables[addresses]="${list}"
    job_roles::choose_port "${list%% *}" || return 1
    variables[master]="${nodes_port}"
    for port in ${of[ports]}; do
        [[ -z "${variables[port.${port}]:-}" ]] || continue
        job_roles::choose_port "${list%% *}" || return 1
        variables[port.${port}]="${nodes_port}"
    done
    job_roles::export_places "$1"
}

job_roles::choose_port() {
    nodes::choose_port "${KIT_MASTER_PORT_BASE}" "$1" "$((++job_roles_ports))"
}

job_roles::export_places() {
    local -n of="KIT_STEP_$1"
    local -n variables="KIT_ROLE_${of[variable]}"
    local -r prefix="KIT_ROLE_${of[variable]}"
    local port upper
    export "${prefix}_ADDR=${variables[address]}" "${prefix}_NODES=${variables[addresses]}"
    for port in ${of[ports]}; do
        upper="${port^^}"
        export "${prefix}_PORT_${upper//-/_}=${variables[port.${port}]}"
    done
}

job_roles::write() {
    local -r file="${KIT_RUN_DIR}/state/roles.json"
    local -i i
    local text="" port ports
    for ((i = 0; i < KIT_STEPS; i++)); do
        local -n of="KIT_STEP_${i}"
        local -n variables="KIT_ROLE_${of[variable]}"
        ports=""
        for port in ${of[ports]}; do
            ports+="${ports:+, }\"${port}\": ${variables[port.${port}]}"
        done
        text+="${text:+,
}  \"${of[name]}\": {\"nodes\": [$(job_roles::quoted ${endpoints_nodes[${of[name]}]})], \"addresses\": [$(job_roles::quoted ${variables[addresses]})], \"ports\": {${ports}}}"
    done
    printf '{\n%s\n}\n' "${text}" >"${file}.new" && mv -f -- "${file}.new" "${file}"
}

job_roles::quoted() {
    local -a words=("${@/#/\"}")
    words=("${words[@]/%/\"}")
    local IFS=,
    printf '%s' "${words[*]}"
}

# job_roles::check_role INDEX: whether the role has a check. With one, it is up when that passes, and a service that stops answering
# is killed.
job_roles::check_role() {
    local -n of="KIT_STEP_$1"
    local -r name="${of[name]}"
    local -r start="${name}-${roles_start[${name}]}"
    [[ -n "${of[ready]}" ]] || return 1
    ((EPOCHSECONDS >= ${job_roles_look[${start}]:-0})) || return 0
    if [[ "${roles_state[${name}]}" == up ]]; then
        job_roles_look["${start}"]=$((EPOCHSECONDS + job_roles_look_up))
        [[ -n "${of[health]}" ]] || return 0
        job_roles_deaf["${start}"]=$((${job_roles_deaf[${start}]:-0} + 1))
        if job_roles::answers "$1"; then
            job_roles_deaf["${start}"]=0
        elif ((job_roles_deaf[${start}] == job_roles_deaf_after)); then
            log::error "role ${name} does not answer ${of[ready]} any more"
            steps::doom "${name}" "it does not answer"
        fi
        return 0
    fi
    job_roles_look["${start}"]=$((EPOCHSECONDS + job_roles_look_starting))
    if job_roles::answers "$1"; then
        roles::set_state "${name}" up
        log::info "role ${name} is ready"
        events::record ready role "${name}"
    elif ((EPOCHSECONDS - roles_since[${name}] >= of[ready_timeout])); then
        log::error "role ${name} was not ready within ${of[ready_timeout]} s: no answer to ${of[ready]}"
        roles::fail "${name}" "${job_roles_not_ready_code}"
    fi
    return 0
}

job_roles::answers() {
    local -n of="KIT_STEP_$1"
    local -n variables="KIT_ROLE_${of[variable]}"
    local kind what port path
    read -r kind what path <<<"${of[ready]}"
    port="${variables[port.${what}]:-}"
    timeout --kill-after=1 2 "${KIT_RUN_DIR}/bin/ready.sh" "${kind}" "${variables[address]}" "${port:-${what}}" "${path}" 2>/dev/null
}
