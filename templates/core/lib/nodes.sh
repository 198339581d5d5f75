# shellcheck shell=bash
# Nodes, master address and master port. Only the batch script has scontrol, so it finds these once and passes them on.

nodes_all=()
nodes_bad=()
nodes_ports_taken=()
# Slurm's name for each node's address, and the nodes that the job had at the last look.
declare -A nodes_known_as=()
nodes_held="" nodes_looked_at=0 nodes_first=""

nodes::list() {
    mapfile -t nodes_all < <(scontrol show hostnames "${SLURM_JOB_NODELIST}")
    # scontrol returns 0 and prints nothing for a list that it cannot read.
    if ((${#nodes_all[@]} < KIT_NODES)); then
        log::error "the allocation ${SLURM_JOB_NODELIST} has ${#nodes_all[@]} nodes, the plan wants ${KIT_NODES}"
        return 1
    fi
}

# Learns the nodes' addresses, and chooses those of the ranks.
nodes::resolve() {
    ((${#nodes_all[@]})) || nodes::list || return 1
    nodes::learn_addresses
    nodes::choose
}

# Chooses the nodes of the ranks: the first good ones of the allocation. The rest are spares. Sets the variables for the ranks.
nodes::choose() {
    local name bad address
    local -a chosen=()
    for name in "${nodes_all[@]}"; do
        for bad in "${nodes_bad[@]}"; do
            [[ "${name}" == "${bad}" ]] && continue 2
        done
        chosen+=("${name}")
    done
    if ((${#chosen[@]} < KIT_NODES)); then
        log::error "${#chosen[@]} good nodes are left of ${#nodes_all[@]}, the plan wants ${KIT_NODES}"
        return 1
    fi
    chosen=("${chosen[@]:0:KIT_NODES}")
    nodes::place_ranks "${chosen[@]}" || return 1
    address="$(nodes::address "${nodes_first}")"
    if [[ -z "${address}" ]]; then
        log::error "${nodes_first} has no IPv4 address that this node can resolve; add it to /etc/hosts or the DNS"
        return 1
    fi
    export KIT_MASTER_ADDR="${address}"
    export KIT_NODE_NAMES="${chosen[*]}"
}

# nodes::place_ranks NAME…: sets nodes_first, the node of rank 0. The first ranks are on the first node, unless `kit rerun --rotate`
# has moved them: then node-order lists the nodes in the order of the ranks. KIT_NODE_RANKS holds the place in that list of each
# node, in srun's order of nodes.
nodes::place_ranks() {
    local -r file="${KIT_RUN_DIR}/node-order"
    local -a order=() ranks=()
    local name index
    nodes_first="$1"
    unset KIT_NODE_RANKS
    [[ -r "${file}" ]] || return 0
    mapfile -t order <"${file}"
    for name in "$@"; do
        for index in "${!order[@]}"; do
            [[ "${order[index]}" != "${name}" ]] || ranks+=("${index}")
        done
    done
    if ((${#ranks[@]} != $# || ${#order[@]} != $#)); then
        log::error "the ranks are to be on ${order[*]}, and the job has $*"
        return 1
    fi
    nodes_first="${order[0]}"
    export KIT_NODE_RANKS="${ranks[*]}"
}

# Reads the addresses of all nodes in one call: `scontrol show node X` fetches the tables of all nodes and partitions, for any X.
nodes::learn_addresses() {
    local name known
    while read -r name known; do
        nodes_known_as["${name}"]="${known}"
    done < <(sinfo --noheader --all --Node --nodes="${SLURM_JOB_NODELIST}" --format='%N %o' 2>/dev/null)
}

# Prints the node's address as Slurm knows it, as IPv4: names that resolve to IPv6 first confuse rendezvous. On the host itself, its
# name often resolves to 127.0.1.1 (Debian, cloud-init), which no other node can reach. Then this node uses the address of its route
# to another node.
nodes::address() {
    local address other
    address="$(nodes::look_up "$1")"
    if [[ "${address}" == 127.* && "$1" == "${SLURMD_NODENAME:-${nodes_all[0]}}" ]]; then
        for other in "${nodes_all[@]}"; do
            [[ "${other}" != "$1" ]] || continue
            other="$(nodes::look_up "${other}")"
            [[ "${other}" == 127.* ]] || address="$(nodes::address_towards "${other}")"
            break
        done
    fi
    printf '%s\n' "${address}"
}

# Prints the address of another node of the job than this one, as this node looks it up; nothing where there is none.
nodes::another_address() {
    local name
    for name in "${nodes_all[@]}"; do
        if [[ "${name}" != "${SLURMD_NODENAME:-$(uname -n)}" ]]; then
            nodes::look_up "${name}"
            return 0
        fi
    done
}

nodes::look_up() {
    getent ahostsv4 "${nodes_known_as[$1]:-$1}" | awk 'NR == 1 { print $1 }'
}

nodes::address_towards() {
    local found
    found="$(ip -4 route get "$1" 2>/dev/null | grep -oP '(?<= src )\S+')" \
        || found="$(hostname --all-ip-addresses | tr ' ' '\n' | grep -m 1 -vE '^(127\.|.*:)')"
    printf '%s' "${found}"
}

# Asks Slurm for the nodes that the job still has, at most once a second. Returns 1 where Slurm gives no answer. A node that Slurm
# has given up on stays out of the job, even when it comes back.
nodes::look() {
    local held
    ((EPOCHSECONDS != nodes_looked_at)) || return 0
    held="$(slurm::ask squeue --noheader --jobs="${environment_job}" --format=%N 2>/dev/null)" && [[ -n "${held}" ]] || return 1
    nodes_held=" $(scontrol show hostnames "${held}" | tr '\n' ' ')"
    nodes_looked_at="${EPOCHSECONDS}"
}

# nodes::lost NAME…: prints those that were out of the job at the last look. Returns 1 where there are none.
nodes::lost() {
    local name
    local -i found=1
    [[ -n "${nodes_held}" ]] || return 1
    for name in "$@"; do
        if [[ "${nodes_held}" != *" ${name} "* ]]; then
            printf '%s\n' "${name}"
            found=0
        fi
    done
    return "${found}"
}

# nodes::short NAME…: prints a list of nodes as Slurm writes it, w[1-256]. Does not ask the controller.
nodes::short() {
    local short
    short="$(IFS=,; scontrol show hostlist "$*" 2>/dev/null)"
    printf '%s' "${short:-$*}"
}

# nodes::find_lost NAME…: adds to nodes_bad the nodes that are out of the job, down or failing. A node that does not answer may
# still train: Slurm waits for it, and so does this script.
nodes::find_lost() {
    local name state
    nodes::look
    while read -r name; do
        nodes::give_up "${name}" "node ${name} is lost: it is no longer in the job"
    done < <(nodes::lost "$@")
    while read -r name state; do
        [[ " $* " == *" ${name} "* ]] || continue
        case "${state}" in
            down* | fail* | error*) nodes::give_up "${name}" "node ${name} is lost: Slurm calls it ${state}" ;;
        esac
    done < <(sinfo --noheader --all --Node --nodes="${SLURM_JOB_NODELIST}" --format='%N %T' 2>/dev/null)
}

# nodes::give_up NAME [WHY]
nodes::give_up() {
    [[ " ${nodes_bad[*]} " != *" $1 "* ]] || return 0
    [[ -z "${2:-}" ]] || log::error "$2"
    nodes_bad+=("$1")
}

# nodes::ordered NAME…: prints them in the order of the allocation, in which srun numbers the nodes of a step.
nodes::ordered() {
    local name
    for name in "${nodes_all[@]}"; do
        [[ " $* " != *" ${name} "* ]] || printf '%s\n' "${name}"
    done
}

# nodes::choose_port BASE ADDRESS INDEX: sets nodes_port. It depends on the job's id, so that two jobs on one node differ, on the
# attempt, so that a restart does not wait for the old socket, and on the index, for several ports of one job. If something listens
# there, the next port is tried. The range stays below Linux's ephemeral ports (from 32768).
nodes::choose_port() {
    local -ri base="$1" span=10000
    local -ri offset=$(((SLURM_JOB_ID + KIT_RESTART_COUNT * 13 + $3 * 1009) % span))
    local -i tries port
    for ((tries = 0; tries < 100; tries++)); do
        port=$((base + (offset + tries * 97) % span))
        if [[ -z "${nodes_ports_taken[${port}]:-}" ]] && ! nodes::listening "$2" "${port}"; then
            nodes_ports_taken["${port}"]=1
            nodes_port="${port}"
            return 0
        fi
    done
    log::error "no free port found between ${base} and $((base + span))"
    return 1
}

# Chooses the port where the ranks of a plain job meet.
nodes::choose_master_port() {
    nodes::choose_port "${KIT_MASTER_PORT_BASE}" "${KIT_MASTER_ADDR}" 0 || return 1
    export KIT_MASTER_PORT="${nodes_port}"
}

nodes::forget_ports() {
    nodes_ports_taken=()
}

nodes::listening() {
    (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null
}

# nodes::replace NAME: replaces a lost node by a spare among the chosen nodes. Returns 1 where no spare is left.
nodes::replace() {
    local spare
    local -a chosen
    local -i i
    read -ra chosen <<<"${KIT_NODE_NAMES}"
    for spare in "${nodes_all[@]}"; do
        [[ " ${chosen[*]} ${nodes_bad[*]} " != *" ${spare} "* ]] || continue
        log::info "node ${spare} takes the place of $1"
        for ((i = 0; i < ${#chosen[@]}; i++)); do
            [[ "${chosen[i]}" != "$1" ]] || chosen[i]="${spare}"
        done
        export KIT_NODE_NAMES="${chosen[*]}"
        return 0
    done
    return 1
}

nodes::banner() {
    log::info "job ${SLURM_JOB_ID} (${KIT_JOB_NAME}), queued again ${SLURM_RESTART_COUNT:-0} times, run folder ${KIT_RUN_DIR}"
    log::info "nodes: ${SLURM_JOB_NODELIST}; ${KIT_WORLD}"
    log::info "image: ${KIT_IMAGES[*]:-none}; runtime: ${KIT_RUNTIME}"
    log::info "$(scontrol --version 2>/dev/null); bash ${BASH_VERSION}; $(uname -sr)"
}
