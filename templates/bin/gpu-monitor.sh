#!/bin/bash
# gpu-monitor.sh FOLDER SELECT OPTIONS DELAY [QUERY]: `nvidia-smi dmon` on this node, to FOLDER/slurm-<job>.<host>.gutil, and with
# QUERY `nvidia-smi --query-gpu`, to the same name with .csv.
# It is a Slurm step of its own, outside the container and outside the training step, so that no signal to the ranks reaches it
# and it can never keep the ranks' step alive.
set -uo pipefail

# shellcheck source-path=SCRIPTDIR
source "${BASH_SOURCE[0]%/*}/../lib/log.sh"

main() {
    local -r folder="$1" select="$2" options="$3" delay="$4" query="${5:-}"
    if ! command -v nvidia-smi >/dev/null; then
        log::info "no nvidia-smi on this node: no GPU monitor"
        return 0
    fi
    local -r name="${folder}/slurm-${SLURM_JOB_ID}.${SLURMD_NODENAME:-$(uname -n)}"
    local -a arguments=(dmon -s "${select}" -d "${delay}")
    if [[ -n "${options}" ]]; then
        arguments+=(-o "${options}")
    fi
    if [[ -n "${query}" ]]; then
        nvidia-smi --query-gpu="timestamp,index,${query}" --format=csv --loop="${delay}" >>"${name}.csv" &
    fi
    exec nvidia-smi "${arguments[@]}" >>"${name}.gutil"
}

main "$@"
