#!/bin/bash
# Which network cards NCCL may use, where a node has InfiniBand beside Ethernet cards that speak the same protocol.

# infiniband::devices SYSFS: names of the cards with an InfiniBand port that is up, with commas between.
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

# infiniband::prefer: unless the cluster or the job has chosen, and where there is any.
infiniband::prefer() {
    local -r devices="$(infiniband::devices /sys/class/infiniband)"
    if [[ -z "${NCCL_IB_HCA:-}" && -n "${devices}" ]]; then
        export NCCL_IB_HCA="${devices}"
    fi
}
