# shellcheck shell=bash
# Nodes, master address and master port. Only the batch script knows scontrol, so this is worked out once and handed on.

nodes_all=()
nodes_bad=()
nodes_ports_taken=()

nodes::resolve() {
    mapfile -t nodes_all < <(scontrol show hostnames "${SLURM_JOB_NODELIST}")
    # scontrol answers 0 and nothing for a list that it cannot read.
    if ((${#nodes_all[@]} < KIT_NODES)); then
        log::error "the allocation ${SLURM_JOB_NODELIST} has ${#nodes_all[@]} nodes, the plan wants ${KIT_NODES}"
        return 1
    fi
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
    address="$(nodes::address "${chosen[0]}")"
    if [[ -z "${address}" ]]; then
        log::error "${chosen[0]} has no IPv4 address that this node can resolve; add it to /etc/hosts or the DNS"
        return 1
    fi
    export KIT_MASTER_ADDR="${address}"
    export KIT_NODE_NAMES="${chosen[*]}"
}

# Slurm's own idea of the node's address, as IPv4: names that resolve to IPv6 first confuse rendezvous.
nodes::address() {
    local -r name="$1"
    local known
    known="$(scontrol show node "${name}" --oneliner 2>/dev/null | grep -oP '(?<= NodeAddr=)\S+')" || known="${name}"
    getent ahostsv4 "${known}" | awk 'NR == 1 { print $1 }'
}

# Prints those of the named nodes that Slurm has given up on: down, failing, or not answering (the `*`); 1 when there are none.
nodes::lost() {
    local name state
    local -i found=1
    for name in "$@"; do
        state="$(scontrol show node "${name}" --oneliner 2>/dev/null | grep -oP '(?<= State=)\S+')"
        case "${state}" in
            DOWN* | *NOT_RESPONDING* | *\* | FAIL* | ERROR*)
                printf '%s %s\n' "${name}" "${state}"
                found=0
                ;;
        esac
    done
    return "${found}"
}

# Adds the lost ones of the ranks' nodes to nodes_bad.
nodes::find_lost() {
    local name state
    while read -r name state; do
        log::error "node ${name} is lost: Slurm calls it ${state}"
        nodes_bad+=("${name}")
    done < <(nodes::lost ${KIT_NODE_NAMES})
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
    for spare in "${nodes_all[@]}"; do
        case " ${KIT_NODE_NAMES} ${nodes_bad[*]} " in
            *" ${spare} "*) ;;
            *)
                log::info "node ${spare} takes the place of $1"
                export KIT_NODE_NAMES="${KIT_NODE_NAMES/$1/${spare}}"
                return 0
                ;;
        esac
    done
    return 1
}

nodes::banner() {
    log::info "job ${SLURM_JOB_ID} (${KIT_JOB_NAME}), queued again ${SLURM_RESTART_COUNT:-0} times, run folder ${KIT_RUN_DIR}"
    log::info "nodes: ${SLURM_JOB_NODELIST}; ${KIT_WORLD}"
    log::info "image: ${KIT_IMAGES[*]:-none}; runtime: ${KIT_RUNTIME}"
    log::info "$(scontrol --version 2>/dev/null); bash ${BASH_VERSION}; $(uname -sr)"
}
