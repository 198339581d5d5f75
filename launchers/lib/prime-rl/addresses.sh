#!/bin/bash
# Addresses of the inference servers. A program that updates weights talks to each server itself, not to the router.

# addresses::servers COPIES: prints the address of each server, one per line; servers that prefill come first. COPIES: servers per node.
addresses::servers() {
    local role nodes port node
    local -i copy
    for role in INFERENCE PREFILL DECODE; do
        nodes="KIT_ROLE_${role}_NODES" port="KIT_ROLE_${role}_PORT_HTTP"
        for node in ${!nodes:-}; do
            for ((copy = 0; copy < $1; copy++)); do
                printf 'http://%s:%d/v1\n' "${node}" "$((${!port} + copy))"
            done
        done
    done
}
