# shellcheck shell=bash
# The chain of nodes that pass the image on (`image.stage = "chain"`): the batch script starts the coordinator, and stage.sh takes part
# on every node. Only these programs need Python on the nodes. Where it is missing, the image is copied from the store.

# How often a node's program is started again after it was killed.
readonly image_chain_tries=3
declare -gi image_chain_pid=0
image_chain_meeting=""

# Whether this node has a Python that the programs run with.
image_chain::possible() {
    python3 -E -s -S -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null
}

image_chain::before_stage() {
    image_chain::begin "$(nodes::another_address)" "${#nodes_all[@]}" "${KIT_CHAINED_IMAGE[@]}"
    steps::set_env "KIT_IMAGE_CHAIN=${image_chain_meeting}"
}

image_chain::after_stage() {
    image_chain::end
    image_chain::record
}

# image_chain::begin ADDRESS NODES STORED SHA256: starts the coordinator on the batch script's node. ADDRESS: of another node.
image_chain::begin() {
    local -r state="${KIT_RUN_DIR}/state"
    local -i tenths
    if [[ -z "$1" ]]; then
        log::info "the address of another node is unknown: every node copies the image from the store"
        return 0
    elif ! image_chain::possible; then
        log::info "no python3 of 3.8 or newer on this node: every node copies the image from the store"
        return 0
    fi
    # Each start has its own name: another node may still know the file of an earlier one.
    image_chain_meeting="${state}/image-chain-${SLURM_JOB_ID}-${SLURM_RESTART_COUNT:-0}-$$"
    rm -f -- "${state}"/image-chain-* "${state}/image-chain.summary"
    steps::become python3 -B -E -s -S "${KIT_RUN_DIR}/lib/image_coordinator.py" "${image_chain_meeting}" "$1" "$2" "$3" "$4" \
        "${state}/image-chain.summary" &
    image_chain_pid=$!
    for ((tenths = 0; tenths < 100; tenths++)); do
        [[ ! -e "${image_chain_meeting}" ]] || return 0
        kill -0 "${image_chain_pid}" 2>/dev/null || break
        sleep 0.1
    done
    log::info "the nodes cannot meet: every node copies the image from the store"
    image_chain::end
    image_chain_meeting=""
}

# Ends the coordinator, which removes its file. After kill -9 of it, the file is removed here.
image_chain::end() {
    ((image_chain_pid)) || return 0
    kill -TERM "${image_chain_pid}" 2>/dev/null
    wait "${image_chain_pid}" 2>/dev/null
    image_chain_pid=0
    rm -f -- "${image_chain_meeting}" "${image_chain_meeting}.new"
}

# Records how the image was passed on.
image_chain::record() {
    local key value
    local -a words=()
    [[ -r "${KIT_RUN_DIR}/state/image-chain.summary" ]] || return 0
    while read -r key value; do
        words+=("${key}" "${value}")
    done <"${KIT_RUN_DIR}/state/image-chain.summary"
    rm -f -- "${KIT_RUN_DIR}/state/image-chain.summary"
    events::record image "${words[@]}"
}

# image_chain::part NODE WAY STORED PARTIAL TARGET LOCK: this node's part. Returns 1 after it has reported the
# reason. A program that was killed is started again, and continues at its last good block.
image_chain::part() {
    local -i tries code=0
    for ((tries = 0; tries < image_chain_tries; tries++)); do
        python3 -B -E -s -S "${BASH_SOURCE[0]%/*}/image_node.py" "${KIT_IMAGE_CHAIN}" "$@"
        code=$?
        ((code > 128 && code != 143)) || break
        log::error "the program that passes the image on was killed (${code}); it is started again"
    done
    return "${code}"
}

# image_chain::leave NODE WHY: the other nodes need not wait for this one.
image_chain::leave() {
    python3 -B -E -s -S "${BASH_SOURCE[0]%/*}/image_node.py" "${KIT_IMAGE_CHAIN}" "$1" leave "$2"
}
