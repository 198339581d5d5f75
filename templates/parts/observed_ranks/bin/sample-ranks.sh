#!/bin/bash
# sample-ranks.sh FILE: a process of the monitor's task, in jobs with [watch]. Every ten seconds it looks at what the processes of
# each rank of this node do, whether the program reports steps or not, and appends one line for all ranks to FILE. A newer time of
# FILE shows that the node lives. It reads files of /proc; Python stacks come from py-spy, which stops nothing.
# lib/rank_samples.awk judges the last lines of all nodes.
#
# A line is `TIME RANKS`, and after a tab for each rank `ROLE@RANK SINCE CPU KIND PLACE WHAT`; a last `.` shows that it is whole.
# SINCE: the time since when the rank has not moved. CPU: percent of one CPU that its processes took since the last look. PLACE: the
# innermost function of the user's code on the main thread's stack, `-` without a stack. WHAT: the collective, or what the kernel says
# that the main thread waits for. KIND:
#   stopped, disk     by the state of the process: T, or D; a read from FUSE that does not return is `disk`, too
#   gone              no process is left
#   collective        waits for other ranks in torch.distributed; loader: in torch's data loader
#   busy              takes a hundredth of a CPU or more
#   lock              waits for a lock or another thread, and no thread of the process waits for the network
#   sleep, network, child, other
# shellcheck source-path=SCRIPTDIR
set -uo pipefail

source "${BASH_SOURCE[0]%/*}/../lib/clock.sh"
source "${BASH_SOURCE[0]%/*}/../lib/rank_processes.sh"

# Seconds between looks, between searches for processes, and between stacks of a rank that takes no CPU, and of another. Stacks of one
# look take this many seconds at most. A rank that reads and writes this many bytes between two looks is moving.
readonly look_every=10 find_every=30 stack_every_idle=20 stack_every_busy=60 stacks_s=6 moving_bytes=65536
# Functions of torch.distributed in which a rank waits for others, as in kit/health/stall_evidence.py.
readonly collectives='^(all_?reduce|all_?gather.*|reduce.*|broadcast.*|(monitored_)?barrier|all_?to_?all.*|gather.*|scatter.*|i?send|i?recv|wait)$'
readonly unsafe='[^A-Za-z0-9_.<>():-]'

pyspy="${BASH_SOURCE[0]%/*}/py-spy"
[[ -x "${pyspy}" ]] || pyspy="$(command -v py-spy)"

# By ROLE@RANK: the numbers of its processes, that of its program, and what was seen at the last look and the last stack.
declare -A pids=() programs=() since=() ticks_before=() bytes_before=() stacks=() sampled=() places=() calls=()

# Searches for the ranks' processes. A rank whose processes are gone stays known until another rank is started again.
find_ranks() {
    local key pid name
    local -i again=0
    local -A before=() processes=()
    for key in "${!programs[@]}"; do before["${key}"]="${programs[${key}]}"; done
    pids=()
    rank_processes::find
    for key in "${!processes[@]}"; do
        pids["${key}"]="${processes[${key}]}" programs["${key}"]=""
        for pid in ${processes[${key}]}; do
            name=""
            { read -r name <"/proc/${pid}/comm"; } 2>/dev/null
            [[ "${name}" != @(bash|sh|dash|env|timeout|numactl|nice) ]] || continue
            programs["${key}"]="${pid}"
            break
        done
        : "${programs[${key}]:=${processes[${key}]%% *}}"
        [[ "${before[${key}]:-${programs[${key}]}}" == "${programs[${key}]}" ]] || again=1
    done
    ((!again)) || forget_gone
}

forget_gone() {
    local key
    for key in "${!programs[@]}"; do
        [[ -n "${pids[${key}]:-}" ]] || unset "programs[${key}]" "since[${key}]"
    done
}

# Sets the caller's ticks and bytes: what the processes PID… have taken and moved, with their children that have ended.
sum_up() {
    local pid text name count
    local -a fields
    for pid in "$@"; do
        text=""
        { IFS= read -r -d '' text <"/proc/${pid}/stat"; } 2>/dev/null
        read -ra fields <<<"${text##*) }"
        ticks+=$((${fields[11]:-0} + ${fields[12]:-0} + ${fields[13]:-0} + ${fields[14]:-0}))
        while read -r name count; do
            [[ "${name}" != @(rchar:|wchar:|read_bytes:|write_bytes:) ]] || bytes+="${count}"
        done 2>/dev/null <"/proc/${pid}/io"
    done
}

# sample KEY: takes a stack of the rank's main thread, and keeps its place and its collective. Returns 1 where none could be read.
sample() {
    local line frames="" place="" innermost="" call="" function file
    local -i inside=0 threads=0
    sampled["$1"]=${EPOCHSECONDS}
    [[ -n "${pyspy}" ]] || return 1
    while IFS= read -r line; do
        if [[ "${line}" == "Thread "* ]]; then
            threads+=1 inside=0
            # py-spy lists the oldest thread first, and does not always know its name.
            if ((threads == 1)) || [[ "${line}" == *'"MainThread"'* ]]; then
                inside=1 frames="" place="" innermost="" call=""
            fi
        elif ((inside)) && [[ "${line}" =~ ^\ \ \ \ (.+)\ \((.+)\)$ ]]; then
            function="${BASH_REMATCH[1]}" file="${BASH_REMATCH[2]}"
            frames+="${line}"
            : "${innermost:=${function}(${file##*/})}"
            if [[ -z "${call}" && "${file}" == *torch/distributed/* && "${function}" =~ ${collectives} ]]; then
                call="${function}"
            elif [[ -z "${call}" && "${file}" == *torch/utils/data/* ]]; then
                call=loader
            fi
            [[ -n "${place}" || "${file}" == *site-packages* || "${file}" == */lib/python3* || "${file}" == '<'* ]] || place="${function}(${file##*/})"
        fi
    done < <(timeout 5 "${pyspy}" dump --nonblocking --full-filenames --pid "${programs[$1]}" 2>/dev/null)
    [[ -n "${frames}" ]] || return 1
    place="${place:-${innermost}}"
    # It becomes a word of a line, and text in a record.
    places["$1"]="${place//${unsafe}/?}" calls["$1"]="${call}"
    frames_now="${frames}"
}

# Whether a thread of a process waits for the network by itself. The threads of gloo and of torch's store wait in epoll.
waits_for_network() {
    local task what
    local -a tasks=("/proc/$1/task"/*)
    for task in "${tasks[@]:0:256}"; do
        what=""
        { read -r what <"${task}/wchan"; } 2>/dev/null
        [[ "${what}" != @(*sk_wait*|wait_woken|*recv*|do_poll*|do_sys_poll|*poll_schedule*|inet_*) ]] || return 0
    done
    return 1
}

# look_at KEY: adds the rank to the caller's line. Uses the caller's now, seconds and began.
look_at() {
    local -r key="$1"
    local -i ticks=0 bytes=0 took moved=0 idle=0 percent
    local text="" state what="" kind=other frames_now=""
    { IFS= read -r -d '' text <"/proc/${programs[${key}]}/stat"; } 2>/dev/null
    text="${text##*) }"
    state="${text%% *}"
    if [[ -z "${pids[${key}]:-}" || "${state}" == [ZX] || -z "${state}" ]]; then
        [[ "${stacks[${key}]:-}" == gone && -n "${since[${key}]:-}" ]] || since["${key}"]="${now}"
        stacks["${key}"]=gone
        line+=$'\t'"${key} ${since[${key}]} 0 gone - -"
        return 0
    fi
    # shellcheck disable=SC2086 # numbers
    sum_up ${pids[${key}]}
    { read -r what <"/proc/${programs[${key}]}/wchan"; } 2>/dev/null
    took=$((ticks - ${ticks_before[${key}]:-0}))
    # A tick is a hundredth of a second.
    percent=$((took / seconds))
    ((took < 0 || took > seconds)) || idle=1
    ((took >= 0 && bytes >= ${bytes_before[${key}]:-0} && bytes - ${bytes_before[${key}]:-0} < moving_bytes)) || moved=1
    [[ "${stacks[${key}]:-}" != gone ]] || { moved=1; stacks["${key}"]="" places["${key}"]=- calls["${key}"]=""; }
    ticks_before["${key}"]="${ticks}" bytes_before["${key}"]="${bytes}"
    if ((EPOCHSECONDS - ${sampled[${key}]:-0} >= (idle ? stack_every_idle : stack_every_busy) && EPOCHSECONDS - began < stacks_s)); then
        if ! sample "${key}"; then
            # No stack could be read: an idle rank then counts as stuck, a busy one as making progress.
            ((idle)) || { moved=1; stacks["${key}"]="" places["${key}"]=- calls["${key}"]=""; }
        elif [[ "${frames_now}" != "${stacks[${key}]:-}" ]]; then
            stacks["${key}"]="${frames_now}" moved=1
        fi
    elif ((!idle)) && [[ -z "${stacks[${key}]:-}" ]]; then
        moved=1
    fi
    ((!moved)) && [[ -n "${since[${key}]:-}" ]] || since["${key}"]="${now}"
    name_kind
    line+=$'\t'"${key} ${since[${key}]} ${percent} ${kind} ${places[${key}]:--} ${what:--}"
}

# Sets the caller's kind and what.
name_kind() {
    local -r call="${calls[${key}]:-}"
    case "${state}:${what}" in
        [Tt]:*) kind=stopped ;;
        D:* | *:request_wait_answer | *:fuse_wait_answer) kind=disk ;;
        *:*nanosleep*) kind="sleep" ;;
        *:futex*) kind=lock ;;
        *:*poll* | *:*sk_wait* | *:wait_woken | *:*recv* | *:inet_*) kind=network ;;
        *:do_wait*) kind=child ;;
    esac
    [[ "${kind}" == stopped ]] || ((idle)) || kind=busy
    [[ "${kind}" == @(stopped|disk) || -z "${call}" ]] || kind=collective
    [[ "${kind}" != collective ]] || what="${call}"
    [[ "${kind}:${call}" != collective:loader ]] || kind=loader
    [[ "${kind}" != lock ]] || ! waits_for_network "${programs[${key}]}" || kind=network
    what="${what//${unsafe}/?}"
}

main() {
    local -r file="$1"
    local key now line pause
    local -i searched=0 looked=EPOCHSECONDS seconds began
    # A wait without a process, which the end of the task would leave behind.
    exec {pause}<> <(:)
    # The monitor's task may be killed alone.
    while kill -0 "${PPID}" 2>/dev/null; do
        began=EPOCHSECONDS
        seconds=$((began > looked ? began - looked : 1))
        for key in "${!pids[@]}"; do
            [[ -d "/proc/${programs[${key}]}" ]] || searched=0
        done
        if ((began - searched >= find_every)); then
            find_ranks
            searched=began
        fi
        # The whole job was suspended, or this process was.
        ((seconds < 3 * look_every)) || since=()
        looked=began line=""
        clock::now now
        for key in "${!programs[@]}"; do
            look_at "${key}"
        done
        printf '%s %d%s\t.\n' "${now}" "${#programs[@]}" "${line}" >>"${file}"
        IFS= read -r -t "${look_every}" _ <&"${pause}"
    done
}

main "$@"
