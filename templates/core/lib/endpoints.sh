# shellcheck shell=bash
# Places the roles: their nodes, addresses and ports.

# Nodes of each role, and address of each node; the number of ports given out.
declare -A endpoints_nodes=() endpoints_addresses=()
declare -i endpoints_ports=0

# Places all roles. Every rank has the addresses and ports in its environment as KIT_ROLE_<NAME>_…, and roles.json holds the same.
endpoints::place() {
    local -i i
    nodes::forget_ports
    endpoints_ports=0
    for ((i = 0; i < KIT_STEPS; i++)); do
        local -n of="KIT_STEP_${i}"
        [[ -z "${of[folder]}" ]] || declare -gA "KIT_ROLE_${of[variable]}=()"
        endpoints::place_one "${i}" || return 1
    done
    endpoints::write
}

# Chooses a role's nodes and master port anew. Ports that other roles know stay.
endpoints::place_one() {
    local -n of="KIT_STEP_$1"
    local -ar chosen=(${KIT_NODE_NAMES})
    local -a nodes
    # A spare may be anywhere in the allocation. Rank 0 must be on the first node of the list.
    mapfile -t nodes < <(nodes::ordered "${chosen[@]:of[first]:of[nodes]}")
    local node port list=""
    endpoints_nodes["${of[name]}"]="${nodes[*]}"
    [[ -n "${of[folder]}" ]] || return 0
    local -n variables="KIT_ROLE_${of[variable]}"
    for node in "${nodes[@]}"; do
        [[ -n "${endpoints_addresses[${node}]:-}" ]] || endpoints_addresses["${node}"]="$(nodes::address "${node}")"
        list+="${list:+ }${endpoints_addresses[${node}]}"
    done
    variables[address]="${list%% *}" variables[addresses]="${list}"
    endpoints::choose_port "${list%% *}" || return 1
    variables[master]="${nodes_port}"
    for port in ${of[ports]}; do
        [[ -z "${variables[port.${port}]:-}" ]] || continue
        endpoints::choose_port "${list%% *}" || return 1
        variables[port.${port}]="${nodes_port}"
    done
    endpoints::export "$1"
}

endpoints::choose_port() {
    nodes::choose_port "${KIT_MASTER_PORT_BASE}" "$1" "$((++endpoints_ports))"
}

endpoints::export() {
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

endpoints::write() {
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
}  \"${of[name]}\": {\"nodes\": [$(endpoints::quoted ${endpoints_nodes[${of[name]}]})], \"addresses\": [$(endpoints::quoted ${variables[addresses]})], \"ports\": {${ports}}}"
    done
    printf '{\n%s\n}\n' "${text}" >"${file}.new" && mv -f -- "${file}.new" "${file}"
}

endpoints::quoted() {
    local -a words=("${@/#/\"}")
    words=("${words[@]/%/\"}")
    local IFS=,
    printf '%s' "${words[*]}"
}
