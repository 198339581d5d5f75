#!/bin/bash
# signal.sh NAME: one task per node, outside the container: sends a signal to the programs that rank.sh started on this node, and to
# nothing else. Slurm's own signals go to every process of a step: FUSE daemons of Pyxis and Enroot, which the ranks' files come from, die
# of them, torchrun dies of USR1, and a DataLoader's worker that gets TERM takes its parent down. Services get none: they are there until
# the others have saved.
# A program that is still to come gets its signal when it is there: this goes on until no rank is left on the node.
set -uo pipefail

# A program that has no handler yet may be about to set one; after so many seconds it gets the signal anyway.
readonly young_s=5

# look SIGNAL: signals each program once; 1 when no process of a rank's step is here. A process is known by its environment, which
# nobody but its user can read.
look() {
    local path pid shell
    local -a of_job of_ranks
    mapfile -t of_job < <(grep -lzxF -- "SLURM_JOB_ID=${SLURM_JOB_ID}" /proc/[0-9]*/environ 2>/dev/null)
    ((${#of_job[@]})) || return 1
    mapfile -t of_ranks < <(grep -lz '^KIT_FAILURES=' "${of_job[@]}" 2>/dev/null)
    ((${#of_ranks[@]})) || return 1
    mapfile -t of_ranks < <(grep -LzxF 'KIT_SERVICE=1' "${of_ranks[@]}" 2>/dev/null)
    ((${#of_ranks[@]})) || return 1
    # What a rank's shell starts has its number in the environment, and so has all that comes of it; the program is its child.
    while IFS= read -r -d '' path && IFS= read -r -d '' shell; do
        path="${path%/environ}"
        pid="${path#/proc/}" shell="${shell#*=}"
        if [[ -z "${told[${pid}]:-}" && "$(parent "${pid}")" == "${shell}" ]] && is_ready "${pid}"; then
            told["${pid}"]=1
            # The shell first: it notes that its program was told to end.
            kill -s "$1" "${shell}" 2>/dev/null
            kill -s "$1" "${pid}" 2>/dev/null
        fi
    done < <(grep -HZz '^KIT_RANK_SHELL=' "${of_ranks[@]}" 2>/dev/null)
    return 0
}

# The fields of /proc/PID/stat after the name, which may hold anything: state, parent, …
fields() {
    local line
    { IFS= read -r -d '' line <"/proc/$1/stat"; } 2>/dev/null
    printf '%s' "${line##*) }"
}

parent() {
    local ppid
    read -r _ ppid _ <<<"$(fields "$1")"
    printf '%s' "${ppid:-}"
}

# Whether a program has a handler for the signal, or is old enough to have none.
is_ready() {
    local name caught="" up
    local -a stat
    while read -r name up; do
        [[ "${name}" != SigCgt: ]] || caught="${up}"
    done 2>/dev/null <"/proc/$1/status"
    ((16#${caught:-0} & 1 << number - 1)) && return 0
    read -ra stat <<<"$(fields "$1")"
    read -r up _ </proc/uptime
    # Field 22 of proc(5): when it started, in ticks of a hundredth.
    ((${up%.*} - ${stat[19]:-0} / 100 >= young_s))
}

main() {
    local -i number
    local -A told=()
    number="$(kill -l "$1")"
    # Where no rank is there yet the step waits; the batch script ends it when all ranks are gone.
    while look "$1" || ((!${#told[@]})); do
        sleep 0.5
    done
}

main "$@"
