#!/bin/bash
# gpu-monitor.sh FOLDER SELECT OPTIONS DELAY [QUERY]: on this node, writes `nvidia-smi dmon` to FOLDER/slurm-<job>.<host>.gutil,
# with QUERY also `nvidia-smi --query-gpu` to the same name with .csv, and the ranks' reports to the same name with .progress. It is
# a separate Slurm step, outside the container and outside the training step. So no signal to the ranks reaches it, and it can never
# keep the ranks' step alive.
# shellcheck source-path=SCRIPTDIR
set -uo pipefail

source "${BASH_SOURCE[0]%/*}/../lib/clock.sh"
source "${BASH_SOURCE[0]%/*}/../lib/log.sh"
source "${BASH_SOURCE[0]%/*}/../lib/rank_processes.sh"
source "${BASH_SOURCE[0]%/*}/../lib/rank_progress.sh"
source "${BASH_SOURCE[0]%/*}/../lib/orphans.sh"

# nvidia-smi may ignore TERM, so end it with this task. Where Slurm tracks processes only by their parents, Slurm would not find it.
declare -a monitor_tools=()
monitor::end_tools() {
    ((${#monitor_tools[@]} == 0)) || kill -KILL "${monitor_tools[@]}" 2>/dev/null
}
trap monitor::end_tools EXIT

# The ranks' folder has a name that everybody can foresee, in a folder of all users. The stall watch reports who was first.
monitor::say_taken() {
    local -r file="${BASH_SOURCE[0]%/bin/*}/state/taken-$1"
    local owner
    owner="$(stat --format=%U -- "${rank_progress_folder}" 2>/dev/null)"
    log::error "no folder for the ranks' reports: ${rank_progress_folder} is ${owner:-somebody else}'s"
    printf '%s %s\n' "${owner:-unknown}" "${rank_progress_folder}" >"${file}.new" && mv -f -- "${file}.new" "${file}"
}

main() {
    local -r folder="$1" select="$2" options="$3" delay="$4" query="${5:-}"
    local -r name="${folder}/slurm-${SLURM_JOB_ID}.${SLURMD_NODENAME:-$(uname -n)}"
    local -r progress="${name}.progress"
    if orphans::find_slurmstepd; then
        orphans::end_without "${KIT_SLURMSTEPD}" &
    fi
    if command -v nvidia-smi >/dev/null; then
        local -a arguments=(dmon -s "${select}" -d "${delay}")
        if [[ -n "${options}" ]]; then
            arguments+=(-o "${options}")
        fi
        if [[ -n "${query}" ]]; then
            nvidia-smi --query-gpu="timestamp,index,${query}" --format=csv --loop="${delay}" >>"${name}.csv" &
            monitor_tools+=("$!")
        fi
        nvidia-smi "${arguments[@]}" >>"${name}.gutil" &
        monitor_tools+=("$!")
    else
        log::info "no nvidia-smi on this node: no GPU monitor"
    fi
    if [[ -x "${BASH_SOURCE[0]%/*}/sample-ranks.sh" ]]; then
        "${BASH_SOURCE[0]%/*}/sample-ranks.sh" "${name}.samples" &
        monitor_tools+=("$!")
    fi
    # The collector is this task's own process. Once that has ended, Slurm kills the rest of the task, and the collector still has
    # to look once more and to remove a folder.
    if ! rank_progress::loop "${progress}"; then
        monitor::say_taken "${SLURMD_NODENAME:-$(uname -n)}"
        ((${#monitor_tools[@]} == 0)) || wait "${monitor_tools[-1]}"
    fi
}

main "$@"
