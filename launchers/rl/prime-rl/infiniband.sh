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

# infiniband::prefer: sets NCCL_IB_HCA to these cards, if there are any and neither the cluster nor the job has set it.
infiniband::prefer() {
    local -r devices="$(infiniband::devices /sys/class/infiniband)"
    if [[ -z "${NCCL_IB_HCA:-}" && -n "${devices}" ]]; then
        export NCCL_IB_HCA="${devices}"
    fi
}
