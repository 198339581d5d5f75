# shellcheck shell=bash
# Who runs where: nodes, addresses and ports of the roles.

# Who runs where, under which addresses and ports. The environment of every rank has it as KIT_ROLE_<NAME>_…, and roles.json holds the same.
where::place() {
    local -i i
    nodes_ports_taken=() roles_ports=0
    for ((i = 0; i < KIT_STEPS; i++)); do
        local -n of="KIT_STEP_${i}"
        [[ -z "${of[folder]}" ]] || declare -gA "KIT_ROLE_${of[variable]}=()"
        where::place_one "${i}" || return 1
    done
    where::write
}

# Nodes and master port anew; the ports that others know stay.
where::place_one() {
    local -n of="KIT_STEP_$1"
    local -ar chosen=(${KIT_NODE_NAMES})
    local -ar nodes=("${chosen[@]:of[first]:of[nodes]}")
    local node port list=""
    roles_nodes["${of[name]}"]="${nodes[*]}"
    [[ -n "${of[folder]}" ]] || return 0
    local -n variables="KIT_ROLE_${of[variable]}"
    for node in "${nodes[@]}"; do
        [[ -n "${roles_addresses[${node}]:-}" ]] || roles_addresses["${node}"]="$(nodes::address "${node}")"
        list+="${list:+ }${roles_addresses[${node}]}"
    done
    variables[address]="${list%% *}" variables[addresses]="${list}"
    where::choose_port "${list%% *}" || return 1
    variables[master]="${nodes_port}"
    for port in ${of[ports]}; do
        [[ -z "${variables[port.${port}]:-}" ]] || continue
        where::choose_port "${list%% *}" || return 1
        variables[port.${port}]="${nodes_port}"
    done
    where::export "$1"
}

where::choose_port() {
    nodes::choose_port "${KIT_MASTER_PORT_BASE}" "$1" "$((++roles_ports))"
}

where::export() {
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

where::write() {
    local -r file="${KIT_RUN_DIR}/state/roles.json"
    local -i i
    local text="" port ports
    for ((i = 0; i < KIT_STEPS; i++)); do
        local -n of="KIT_STEP_${i}"
        [[ -n "${of[folder]}" ]] || return 0
        local -n variables="KIT_ROLE_${of[variable]}"
        ports=""
        for port in ${of[ports]}; do
            ports+="${ports:+, }\"${port}\": ${variables[port.${port}]}"
        done
        text+="${text:+,
}  \"${of[name]}\": {\"nodes\": [$(where::quoted ${roles_nodes[${of[name]}]})], \"addresses\": [$(where::quoted ${variables[addresses]})], \"ports\": {${ports}}}"
    done
    printf '{\n%s\n}\n' "${text}" >"${file}.new" && mv -f -- "${file}.new" "${file}"
}

where::quoted() {
    local -a words=("${@/#/\"}")
    words=("${words[@]/%/\"}")
    local IFS=,
    printf '%s' "${words[*]}"
}
