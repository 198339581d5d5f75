#!/bin/bash
# Chooses the network cards of NCCL on nodes that have InfiniBand and also Ethernet cards with the same protocol.

# infiniband::devices SYSFS: prints the cards with an active InfiniBand port, separated by commas.
infiniband::devices() {
    local -r root="$1"
    local port card
    local -a found=()
    for port in "${root}"/*/ports/*; do
        card="${port%/ports/*}"
        card="${card##*/}"
        if [[ "$(cat "${port}/link_layer" 2>/dev/null)" == InfiniBand && "$(cat "${port}/state" 2>/dev/null)" == *ACTIVE* &&
            " ${found[*]} " != *" ${card} "* ]]; then
            found+=("${card}")
        fi
    done
    local IFS=,
    printf '%s\n' "${found[*]}"
}

# infiniband::ports SYSFS LAYER: prints CARD:PORT of each active port with that link layer, separated by commas.
infiniband::ports() {
    local -r root="$1" layer="$2"
    local port card
    local -a found=()
    for port in "${root}"/*/ports/*; do
        if [[ "$(cat "${port}/link_layer" 2>/dev/null)" == "${layer}" && "$(cat "${port}/state" 2>/dev/null)" == *ACTIVE* ]]; then
            card="${port%/ports/*}"
            found+=("${card##*/}:${port##*/}")
        fi
    done
    local IFS=,
    printf '%s\n' "${found[*]}"
}

# infiniband::transfer: sets the cards for UCX, which would try all cards and fail at one that it cannot open.
infiniband::transfer() {
    local devices
    devices="$(infiniband::ports /sys/class/infiniband InfiniBand)"
    devices="${devices:-$(infiniband::ports /sys/class/infiniband Ethernet)}"
    export UCX_NET_DEVICES="${UCX_NET_DEVICES:-${devices:-all}}"
}

# infiniband::prefer: unless the cluster or the job has chosen, and where there is any.
infiniband::prefer() {
    local -r devices="$(infiniband::devices /sys/class/infiniband)"
    if [[ -z "${NCCL_IB_HCA:-}" && -n "${devices}" ]]; then
        export NCCL_IB_HCA="${devices}"
    fi
}
