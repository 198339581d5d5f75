# shellcheck shell=bash
# Places the roles on the chosen nodes.

# Nodes of each role.
declare -A endpoints_nodes=()

# endpoints::place [INDEX]: places all roles, or this one, whose nodes have changed: then what others know of it stays, where it can.
endpoints::place() {
    local -i i
    (($#)) || nodes::forget_ports
    for ((i = 0; i < KIT_STEPS; i++)); do
        [[ "${1:-${i}}" != "${i}" ]] || endpoints::choose_nodes "${i}"
    done
    parts::require placed "$@"
}

endpoints::choose_nodes() {
    local -n of="KIT_STEP_$1"
    local -ar chosen=(${KIT_NODE_NAMES})
    local -a nodes
    # A spare may be anywhere in the allocation. Rank 0 must be on the first node of the list.
    mapfile -t nodes < <(nodes::ordered "${chosen[@]:of[first]:of[nodes]}")
    endpoints_nodes["${of[name]}"]="${nodes[*]}"
}
