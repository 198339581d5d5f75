# shellcheck shell=bash
# Nodes, master address and master port. Only the batch script knows scontrol, so this is worked out once and handed on.

nodes_all=()
nodes_bad=()
nodes_ports_taken=()
# What Slurm calls each node's address, and the nodes that the job had at the last look.
declare -A nodes_known_as=()
nodes_held="" nodes_looked_at=0 nodes_first=""

nodes::resolve() {
    mapfile -t nodes_all < <(scontrol show hostnames "${SLURM_JOB_NODELIST}")
    # scontrol answers 0 and nothing for a list that it cannot read.
    if ((${#nodes_all[@]} < KIT_NODES)); then
        log::error "the allocation ${SLURM_JOB_NODELIST} has ${#nodes_all[@]} nodes, the plan wants ${KIT_NODES}"
        return 1
    fi
    nodes::learn_addresses
    nodes::choose
}

# The nodes that the ranks run on: the first good ones of the allocation, spares left over. Sets what the ranks are told.
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

# nodes::place_ranks NAME…: sets nodes_first, where rank 0 is. The first ranks are on the first node, unless `kit rerun --rotate` has
# moved them: node-order names the nodes in the order of the ranks. KIT_NODE_RANKS has, for each node as srun numbers them, its place there.
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

# Of all nodes, in one call: `scontrol show node X` fetches the tables of all nodes and partitions, whatever X is.
nodes::learn_addresses() {
    local name known
    while read -r name known; do
        nodes_known_as["${name}"]="${known}"
    done < <(sinfo --noheader --all --Node --nodes="${SLURM_JOB_NODELIST}" --format='%N %o' 2>/dev/null)
}

# Slurm's own idea of the node's address, as IPv4: names that resolve to IPv6 first confuse rendezvous. A host name often leads to 127.0.1.1
# on the host itself (Debian, cloud-init), where no other node gets through: this node then goes by the address that it has on the way to
# another one.
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

nodes::look_up() {
    getent ahostsv4 "${nodes_known_as[$1]:-$1}" | awk 'NR == 1 { print $1 }'
}

nodes::address_towards() {
    local found
    found="$(ip -4 route get "$1" 2>/dev/null | grep -oP '(?<= src )\S+')" \
        || found="$(hostname --all-ip-addresses | tr ' ' '\n' | grep -m 1 -vE '^(127\.|.*:)')"
    printf '%s' "${found}"
}

# Which nodes the job still has, in one call, at most one a second; 1 when Slurm gives no answer. A node that Slurm has given up on is out
# of the job, for good, even when it comes back.
nodes::look() {
    local held
    ((EPOCHSECONDS != nodes_looked_at)) || return 0
    held="$(squeue --noheader --jobs="${environment_job}" --format=%N 2>/dev/null)" && [[ -n "${held}" ]] || return 1
    nodes_held=" $(scontrol show hostnames "${held}" | tr '\n' ' ')"
    nodes_looked_at="${EPOCHSECONDS}"
}

# nodes::lost NAME…: prints those that were out of the job at the last look; 1 when there are none.
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

# nodes::short NAME…: as Slurm writes a list of nodes, w[1-256]; asks nobody.
nodes::short() {
    local short
    short="$(IFS=,; scontrol show hostlist "$*" 2>/dev/null)"
    printf '%s' "${short:-$*}"
}

# nodes::find_lost NAME…: looks, and adds to nodes_bad those that are out of the job, down or failing. A node that does not answer may
# train on: Slurm waits for it, and so does this script.
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

# nodes::ordered NAME…: in the order of the allocation, as srun numbers the nodes of a step.
nodes::ordered() {
    local name
    for name in "${nodes_all[@]}"; do
        [[ " $* " != *" ${name} "* ]] || printf '%s\n' "${name}"
    done
}

# nodes::choose_port BASE ADDRESS INDEX: sets nodes_port. From the job's id, so that two jobs on one node differ, from the attempt, so
# that a restart does not wait for the old socket, and from the index, for several ports of one job; moved on while something listens
# there. The range stays below Linux's ephemeral ports (32768 on).
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

# The port where the ranks of a plain job meet.
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

# nodes::replace NAME: a spare takes the place of a lost node among the chosen ones; 1 when there is none left.
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
