#!/bin/bash
# evidence.sh FOLDER [RANK]: one task per node, outside the container. Writes what each rank of this node does now to
# FOLDER/rank-<n>.txt (FOLDER/<role>/rank-<n>.txt), and what the node does to FOLDER/node-<name>.txt. It stops and ends nothing. It
# reads files of /proc. Python stacks come from py-spy, if the run or this node has it and it may look into the process, else from
# the handler of kit_rank.py. The last collectives come from torch's flight recorder, by kit_recorder.py. It takes 20 s at most, for
# any number of ranks.
# shellcheck source-path=SCRIPTDIR
set -uo pipefail

source "${BASH_SOURCE[0]%/*}/../lib/clock.sh"
source "${BASH_SOURCE[0]%/*}/../lib/log.sh"
source "${BASH_SOURCE[0]%/*}/../lib/rank_processes.sh"

# All ranks of a node are examined at the same time. A stack of a hundred frames has some ten KB.
readonly most_s=18 most_bytes=131072 most_processes=16 most_threads=64 most_files=64
# The signal of kit_rank.py.
readonly stacks_signal=62

# `kit submit` copies it there if it is installed next to the kit.
pyspy="${BASH_SOURCE[0]%/*}/py-spy"
[[ -x "${pyspy}" ]] || pyspy="$(command -v py-spy)"

# Prints the fields of proc(5)'s stat, from the state on.
fields() {
    local line=""
    { IFS= read -r -d '' line <"/proc/$1/stat"; } 2>/dev/null
    printf '%s' "${line##*) }"
}

ticks() {
    local -a stat
    read -ra stat <<<"$(fields "$1")"
    printf '%d' $((${stat[11]:-0} + ${stat[12]:-0}))
}

# Prints the first line of a file of /proc, which may be gone or forbidden.
line_of() {
    local line=""
    { read -r line <"$1"; } 2>/dev/null
    printf '%s' "${line:--}"
}

# Whether a file in the folder of the reports may be read: a pipe would be waited for, and a link leads anywhere.
is_own_file() {
    [[ -f "$1" && -O "$1" && ! -L "$1" ]]
}

# about_rank ROLE@RANK PID…
about_rank() {
    local -r name="$1"
    shift
    local -a pids=("${@:1:most_processes}")
    local -A before=()
    local pid now report=-
    clock::now now
    for pid in "${pids[@]}"; do
        before["${pid}"]="$(ticks "${pid}")"
    done
    printf '== rank\nrank %s\nrole %s\nnode %s\ntime %s\n' "${name##*@}" "${name%@*}" "${node}" "${now}"
    ! is_own_file "${reports}/${name}" || report="$(line_of "${reports}/${name}")"
    printf 'report %s\n' "${report}"
    sleep 1
    about_processes
    ask_recorder
    printf '== threads\n'
    about_threads "${pids[0]}" | head -n "${most_threads}"
    printf '== files\n'
    for pid in "${pids[@]}"; do
        about_files "${pid}" | sort --unique | head -n "${most_files}"
    done
    printf '== kernel\n'
    head -n 30 "/proc/${pids[0]}/stack" 2>/dev/null
    printf '== recorder\n'
    about_recorder
    printf '== stacks\n'
    about_stacks
}

# Prints PID STATE CPU% WCHAN COMMAND, the program first. Uses the caller's pids and before.
about_processes() {
    local pid state
    printf '== processes\n'
    for pid in "${pids[@]}"; do
        read -r state _ <<<"$(fields "${pid}")"
        printf '%d %s %d %s %s\n' "${pid}" "${state:-gone}" $(($(ticks "${pid}") - ${before[${pid}]})) "$(line_of "/proc/${pid}/wchan")" \
            "$(tr '\0\n' '  ' 2>/dev/null <"/proc/${pid}/cmdline" | head -c 200)"
    done
}

# Prints TID STATE WCHAN NAME.
about_threads() {
    local path state
    for path in "/proc/$1/task"/*; do
        read -r state _ <<<"$(fields "${path#/proc/}")"
        printf '%s %s %s %s\n' "${path##*/}" "${state:-gone}" "$(line_of "${path}/wchan")" "$(line_of "${path}/comm")"
    done
}

# Prints PID PATH of each open file, and for other descriptors the number of each kind.
about_files() {
    local fd target
    local -A kinds=()
    for fd in "/proc/$1/fd"/*; do
        target="$(readlink -- "${fd}")" || continue
        case "${target}" in
            /dev/*) ;;
            /*) printf '%d %s\n' "$1" "${target}" ;;
            *) kinds["${target%%:*}"]=$((${kinds[${target%%:*}]:-0} + 1)) ;;
        esac
    done
    for target in "${!kinds[@]}"; do
        printf '%d (%d of %s)\n' "$1" "${kinds[${target}]}" "${target}"
    done
}

# Uses the caller's recorder, the file with which kit_recorder.py answers.
ask_recorder() {
    [[ -p "${recorder}.ask" && -O "${recorder}.ask" ]] || return 0
    rm -f -- "${recorder}"
    # Opened for reading and writing, so that it does not wait for a reader.
    printf 'x' 1<>"${recorder}.ask"
}

about_recorder() {
    local -i tenths
    [[ -p "${recorder}.ask" ]] || return 0
    for ((tenths = 0; tenths < 20; tenths++)); do
        if is_own_file "${recorder}"; then
            cat -- "${recorder}"
            return 0
        fi
        sleep 0.1
    done
    printf 'no answer within 2 s: its thread waits for the interpreter, which another one holds\n'
}

# Prints the Python stacks of all threads. Uses the caller's name and pids.
about_stacks() {
    local pid
    local -i asked=0
    for pid in "${pids[@]}"; do
        ((asked < 4)) || break
        if [[ -n "${pyspy}" ]] && timeout 5 "${pyspy}" dump --nonblocking --full-filenames --pid "${pid}" 2>/dev/null; then
            asked+=1
        elif has_handler "${pid}"; then
            printf 'Process %d\n' "${pid}"
            ask_handler "${pid}"
            asked+=1
        fi
    done
}

# Whether the signal would find kit_rank's handler there. Any other process would die of it.
has_handler() {
    local name mask caught=0 fd
    is_own_file "${stacks}" || return 1
    while read -r name mask; do
        [[ "${name}" != SigCgt: ]] || caught="${mask}"
    done 2>/dev/null <"/proc/$1/status"
    ((16#${caught} & 1 << stacks_signal - 1)) || return 1
    for fd in "/proc/$1/fd"/*; do
        [[ "${fd}" -ef "${stacks}" ]] && return 0
    done
    return 1
}

# A process that is stopped, or waits in the kernel, writes nothing, and its state tells why. What it writes later is discarded.
ask_handler() {
    local -i size=-1 now tenths
    : >"${stacks}"
    kill -s "${stacks_signal}" "$1" 2>/dev/null || return 0
    for ((tenths = 0; tenths < 15; tenths++)); do
        sleep 0.1
        now="$(stat --format=%s -- "${stacks}" 2>/dev/null)"
        ((now == 0 || now != size)) || break
        size=now
    done
    cat -- "${stacks}" 2>/dev/null
}

about_node() {
    local now
    clock::now now
    printf '== node\nnode %s\ntime %s\nload %s\n' "${node}" "${now}" "$(line_of /proc/loadavg)"
    local kind
    for kind in cpu io memory; do
        [[ -r "/proc/pressure/${kind}" ]] && sed "s/^/${kind} /" "/proc/pressure/${kind}" 2>/dev/null
    done
    printf '== disk\n'
    timeout 5 df --output=avail,iavail,target --block-size=1M -- "${BASH_SOURCE[0]}" /dev/shm /tmp 2>/dev/null
    printf '== memory\n'
    head -n 5 /proc/meminfo
    printf '== network\n'
    about_network
    printf '== kernel log\n'
    dmesg 2>/dev/null | grep -E 'Xid|NVRM|Out of memory|oom-kill|blocked for more than|I/O error|not responding|Machine check' | tail -n 40
    printf '== gpus\n'
    if command -v nvidia-smi >/dev/null; then
        timeout 10 nvidia-smi --query-gpu=index,name,pstate,utilization.gpu,memory.used,memory.total,temperature.gpu,power.draw,ecc.errors.uncorrected.volatile.total \
            --format=csv,noheader 2>&1
    fi
}

# Prints interfaces that are down, and peers that do not acknowledge what was sent to them.
about_network() {
    local path
    for path in /sys/class/net/*; do
        printf '%s %s carrier %s\n' "${path##*/}" "$(line_of "${path}/operstate")" "$(line_of "${path}/carrier")"
    done
    # proc_net_tcp: address and port are hexadecimal, the bytes of the address in reverse. The seventh field counts retransmits.
    awk 'function number(hex,    i, n) { for (i = 1; i <= length(hex); i++) n = 16 * n + index("0123456789ABCDEF", substr(hex, i, 1)) - 1; return n }
        FNR > 1 && $7 != "00000000" && NR < 20000 { split($3, to, ":"); a = to[1]
            address = number(substr(a, 7, 2)) "." number(substr(a, 5, 2)) "." number(substr(a, 3, 2)) "." number(substr(a, 1, 2)); n[address]++ }
        END { for (address in n) print "unacknowledged by", address ":", n[address], "connections" }' /proc/net/tcp 2>/dev/null | head -n 40
}

# keep FILE COMMAND…: writes the command's output to FILE, up to a limit and under a temporary name first.
keep() {
    local -r file="$1"
    shift
    mkdir -p -- "${file%/*}"
    "$@" 2>/dev/null | head -c "${most_bytes}" >"${file}.new"
    mv -f -- "${file}.new" "${file}"
}

main() {
    local -r folder="$1" only="${2:-}" node="${SLURMD_NODENAME:-$(uname -n)}"
    local reports="/dev/shm/kit-${EUID}-${SLURM_JOB_ID}" key role stacks recorder
    local -a files=()
    local -A processes=()
    # Another user may have made it first, with a link to a secret in it. No file is below /dev/null.
    [[ -O "${reports}" && ! -L "${reports}" ]] || reports=/dev/null
    rank_processes::find
    for key in "${!processes[@]}"; do
        [[ -z "${only}" || "${key##*@}" == "${only}" ]] || continue
        role="${key%@*}" stacks="${reports}/stacks.${key/@/.}" recorder="${reports}/recorder.${key/@/.}"
        files+=("${folder}${role:+/${role}}/rank-${key##*@}.txt")
        # shellcheck disable=SC2086 # a list of PIDs
        keep "${files[-1]}" about_rank "${key}" ${processes[${key}]} &
    done
    if [[ -z "${only}" ]]; then
        files+=("${folder}/node-${node}.txt")
        keep "${files[-1]}" about_node &
    fi
    # Leave out what takes longer, such as a file of /proc behind a lock of the kernel.
    local -i tenths
    for ((tenths = 0; tenths < most_s * 10; tenths++)); do
        [[ -n "$(jobs -rp)" ]] || return 0
        sleep 0.1
    done
    # shellcheck disable=SC2046 # numbers of processes
    kill -KILL $(jobs -rp) 2>/dev/null
    for key in "${files[@]}"; do
        mv -f -- "${key}.new" "${key}" 2>/dev/null
    done
    log::info "not all of it was there within ${most_s} s"
}

main "$@"
