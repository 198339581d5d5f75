#!/bin/bash
# signal.sh NAME[,NAME] SECONDS: one task per node, outside the container. Sends a signal only to the programs that rank.sh started on
# this node. Each gets the first of the names for which it has a handler, or the last name if it has none. Slurm's own signals go to
# every process of a step: torchrun dies of USR1, and a DataLoader's worker that gets TERM takes its parent down. Services get no
# signal: they stay until the others have saved. This script continues until no rank is left on the node, so a program that has not
# started yet gets its signal later. A program without a handler for the first name may be about to set one while it still loads
# (imports from a cold file system take many seconds). It gets its signal once it has stopped reading files, or has lived for half of
# the SECONDS that the ranks have to save.
set -uo pipefail

# shellcheck source-path=SCRIPTDIR
source "${BASH_SOURCE[0]%/*}/../lib/clock.sh"

# Seconds without a read or a page from a file system, after which a program counts as loaded.
readonly quiet_s=5

# look: signals each program once. Returns 1 when no process of a rank's step is here. A process is recognised by its
# environment, which only its user can read.
look() {
    local path pid shell above
    local -a of_job of_ranks
    mapfile -t of_job < <(grep -lzxF -- "SLURM_JOB_ID=${SLURM_JOB_ID}" /proc/[0-9]*/environ 2>/dev/null)
    ((${#of_job[@]})) || return 1
    mapfile -t of_ranks < <(grep -lz '^KIT_FAILURES=' "${of_job[@]}" 2>/dev/null)
    ((${#of_ranks[@]})) || return 1
    mapfile -t of_ranks < <(grep -LzxF 'KIT_SERVICE=1' "${of_ranks[@]}" 2>/dev/null)
    ((${#of_ranks[@]})) || return 1
    # A rank's shell exports its own number, which all its descendants inherit. The program is its direct child.
    while IFS= read -r -d '' path && IFS= read -r -d '' shell; do
        path="${path%/environ}"
        pid="${path#/proc/}" shell="${shell#*=}"
        [[ -z "${told[${pid}]:-}" ]] || continue
        above="$(parent "${pid}")"
        if [[ "$(own_number "${above}")" == "${shell}" ]] && is_ready "${pid}"; then
            told["${pid}"]=1
            # Signal the shell first, so that it records the signal before its program exits.
            kill -s "${chosen}" "${above}" 2>/dev/null
            kill -s "${chosen}" "${pid}" 2>/dev/null
        fi
    done < <(grep -HZz '^KIT_RANK_SHELL=' "${of_ranks[@]}" 2>/dev/null)
    return 0
}

# Prints the fields of /proc/PID/stat after the name, which may hold anything: state, parent, …
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

# Prints the number that a process has for itself. It differs from ours in a container with its own PID namespace.
own_number() {
    local name numbers own=""
    while read -r name numbers; do
        [[ "${name}" != NSpid: ]] || own="${numbers##*[[:space:]]}"
    done 2>/dev/null <"/proc/$1/status"
    printf '%s' "${own}"
}

# Whether a program has a handler for the first of the signals, or has loaded without setting that one. Its signal is in `chosen`.
is_ready() {
    local name caught="" up has_read
    local -i place
    local -a stat
    while read -r name up; do
        [[ "${name}" != SigCgt: ]] || caught="${up}"
    done 2>/dev/null <"/proc/$1/status"
    for ((place = 0; place < ${#names[@]}; place++)); do
        chosen="${names[place]}"
        ((16#${caught:-0} & 1 << numbers[place] - 1)) && break
    done
    ((place)) || return 0
    read -ra stat <<<"$(fields "$1")"
    read -r up _ </proc/uptime
    # Fields 22 and 12 of proc(5): when it started, in ticks of a hundredth, and its major page faults.
    local -ri age=$((${up%.*} - ${stat[19]:-0} / 100))
    ((age < most_s)) || return 0
    has_read="${stat[9]:-0}"
    while read -r name up; do
        [[ "${name}" != rchar: ]] || has_read+=" ${up}"
    done 2>/dev/null <"/proc/$1/io"
    if [[ "${has_read}" != "${last_read[$1]:-}" ]]; then
        last_read["$1"]="${has_read}" last_change["$1"]="${EPOCHSECONDS}"
    fi
    ((age >= quiet_s && EPOCHSECONDS - last_change[$1] >= quiet_s))
}

main() {
    local -ri most_s=$(($2 / 2))
    local -A told=() last_read=() last_change=()
    local -a names numbers
    local chosen
    IFS=, read -ra names <<<"$1"
    mapfile -t numbers < <(kill -l "${names[@]}")
    # Where no rank has started yet, the step waits. The batch script ends it when all ranks are gone.
    while look || ((!${#told[@]})); do
        sleep 0.5
    done
}

main "$@"
