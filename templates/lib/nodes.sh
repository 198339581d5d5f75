# shellcheck shell=bash
# Nodes, master address and master port. Only the batch script knows scontrol, so this is worked out once and handed on.

nodes::resolve() {
    local -a names
    mapfile -t names < <(scontrol show hostnames "${SLURM_JOB_NODELIST}")
    # scontrol answers 0 and nothing for a list that it cannot read.
    if ((${#names[@]} != KIT_NODES)); then
        log::error "the allocation ${SLURM_JOB_NODELIST} has ${#names[@]} nodes, the plan wants ${KIT_NODES}"
        return 1
    fi
    local address
    address="$(nodes::address "${names[0]}")"
    if [[ -z "${address}" ]]; then
        log::error "${names[0]} has no IPv4 address that this node can resolve; add it to /etc/hosts or the DNS"
        return 1
    fi
    export KIT_MASTER_ADDR="${address}"
    export KIT_NODE_NAMES="${names[*]}"
}

# Slurm's own idea of the node's address, as IPv4: names that resolve to IPv6 first confuse rendezvous.
nodes::address() {
    local -r name="$1"
    local known
    known="$(scontrol show node "${name}" --oneliner 2>/dev/null | grep -oP '(?<= NodeAddr=)\S+')" || known="${name}"
    getent ahostsv4 "${known}" | awk 'NR == 1 { print $1 }'
}

# A port from the job's id, so that two jobs on one node differ, moved on while something listens there. The range stays
# below Linux's ephemeral ports (32768 on).
nodes::choose_port() {
    local -r base="$1"
    local -ri span=10000
    local -i offset=$((SLURM_JOB_ID % span)) tries
    for ((tries = 0; tries < 100; tries++)); do
        local -i port=$((base + (offset + tries * 97) % span))
        if ! nodes::listening "${port}"; then
            export KIT_MASTER_PORT="${port}"
            return 0
        fi
    done
    log::error "no free port found between ${base} and $((base + span))"
    return 1
}

nodes::listening() {
    (exec 3<>"/dev/tcp/${KIT_MASTER_ADDR}/$1") 2>/dev/null
}

nodes::banner() {
    log::info "job ${SLURM_JOB_ID} (${KIT_JOB_NAME}), restart ${KIT_RESTART_COUNT}, run folder ${KIT_RUN_DIR}"
    log::info "nodes: ${KIT_NODE_NAMES}; world size ${KIT_WORLD_SIZE}; master ${KIT_MASTER_ADDR}:${KIT_MASTER_PORT}"
    log::info "image: ${KIT_IMAGE:-none} ${KIT_IMAGE_DIGEST}; runtime: ${KIT_RUNTIME}"
    log::info "$(scontrol --version 2>/dev/null); bash ${BASH_VERSION}; $(uname -sr)"
}
