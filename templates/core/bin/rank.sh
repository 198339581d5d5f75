#!/bin/bash
# Runs once per rank, inside the container: sends the rank's output to its own log, runs the program, and records how it ended.
# env(1) sets the job's variables, not bash: names such as RANDOM or SECONDS have a meaning in bash, which would change their
# values.
# shellcheck source-path=SCRIPTDIR/..
set -euo pipefail

# Always started by its absolute path. This line runs on every rank, so it starts no process.
readonly KIT_RUN_DIR="${BASH_SOURCE[0]%/bin/*}"
source "${KIT_RUN_DIR}/lib/clock.sh"
source "${KIT_RUN_DIR}/lib/log.sh"
source "${KIT_RUN_DIR}/lib/failures.sh"
# shellcheck source=/dev/null
[[ ! -r "${KIT_RUN_DIR}/lib/reports.sh" ]] || source "${KIT_RUN_DIR}/lib/reports.sh"
KIT_RANK_ARGS=() KIT_WARM=() KIT_KEEP="" KIT_MEMORY=""
# shellcheck source=/dev/null
source "${KIT_RUN_DIR}/${KIT_PROGRAM_FILE}"
if ((${#KIT_WARM[@]})); then
    # shellcheck source=/dev/null
    source "${KIT_RUN_DIR}/lib/warm_ranks.sh"
fi
if [[ -n "${KIT_MEMORY}" ]]; then
    # shellcheck source=/dev/null
    source "${KIT_RUN_DIR}/lib/memory_checkpoints.sh"
fi

# Opens the file that tells whether this task's slurmstepd lives, as rank_stepd: at the program's end the container's FUSE daemons may
# be gone, and no path can be opened, not even /dev/null.
rank::hold_slurmstepd() {
    rank_stepd=""
    [[ -z "${KIT_SLURMSTEPD:-}" ]] || { exec {rank_stepd}<"/proc/${KIT_SLURMSTEPD}/stat"; } 2>/dev/null || rank_stepd=""
}

# Whether the slurmstepd that started this task is gone. lib/orphans.sh looks for it while the program runs.
rank::is_orphan() {
    local line=""
    [[ -n "${KIT_SLURMSTEPD:-}" ]] || return 1
    [[ -z "${rank_stepd}" ]] || { read -r line <&"${rank_stepd}"; } 2>&-
    [[ "${line}" != *"(slurmstepd) "[!ZX]* ]]
}

# Completes the program's words: the values of a role, of `kit rerun --rotate`, and of this rank.
rank::complete_words() {
    # shellcheck source=/dev/null
    if [[ -n "${KIT_ROLE:-}" ]]; then
        source "${KIT_RUN_DIR}/lib/placeholders.sh"
        placeholders::all KIT_PROGRAM KIT_PROGRAM_ENV
    fi
    # It compares what each rank computes.
    if [[ -e "${KIT_RUN_DIR}/node-order" ]]; then
        KIT_PROGRAM=("${KIT_PROGRAM[0]}" "${KIT_RUN_DIR}/lib/rank_numbers.py" "${KIT_PROGRAM[@]:1}")
    fi
    local -i index
    for ((index = 0; index < ${#KIT_RANK_ARGS[@]}; index += 2)); do
        KIT_PROGRAM+=("${KIT_RANK_ARGS[index]}" "${!KIT_RANK_ARGS[index + 1]}")
        # Such a value changes with each start: the arguments must be made anew.
        [[ "${KIT_RANK_ARGS[index + 1]}" != @(KIT_|MASTER_|TORCHELASTIC_)* ]] || export KIT_WARM_ONCE=1
    done
}

# Where the warm process of this node forks the program, adds its client to the caller's `start` and `warm`.
rank::choose_start() {
    ((${#KIT_WARM[@]})) && [[ -n "${KIT_WARM_WAIT:-}" ]] || return 0
    # The client has no number of a shell: it is not the program.
    start+=(-u KIT_RANK_SHELL)
    [[ -z "${KIT_KEEP}" ]] || export KIT_KEEP
    warm=("${KIT_PROGRAM[0]}" -I -S "${KIT_RUN_DIR}/lib/warm_client.py" "$(warm_ranks::name)" "${KIT_WARM_WAIT}" "$$")
}

# Runs the program in the caller's `start` and `warm`, and returns its code. If a signal ends it, bash would print `Terminated`, or the
# source of the subshell, into the rank's log: this shell's own stderr leads nowhere meanwhile.
rank::run_program() {
    local -i code=0
    local log
    exec {log}>&2
    {
        (
            exec 2>&"${log}" {log}>&-
            [[ -z "${pipe}" ]] || exec {pipe}>&-
            [[ -z "${rank_stepd}" ]] || exec {rank_stepd}<&-
            exec "${start[@]}" -- "${KIT_PROGRAM_ENV[@]}" "${warm[@]}" "${KIT_PROGRAM[@]}"
        ) || code=$?
    } 2>/dev/null
    exec {log}>&-
    return "${code}"
}

# Cleans up after the program, and records its end. Changes the caller's `code`; reads its `pipe` and `signalled`.
rank::finish() {
    umask g-w,o-w
    if declare -F reports::end >/dev/null; then
        reports::end
        reports::remove_unused
    fi
    [[ -z "${KIT_MEMORY}" ]] || memory_checkpoints::remove_unused
    # Without its slurmstepd, a rank dies of some signal: of HUP under Pyxis.
    if ((code > 128)) && [[ -z "${signalled}" ]] && kill -l "${code}" >/dev/null 2>&1; then
        log::info "the program ended with ${code}, as by the signal $(kill -l "${code}")"
    fi
    if ((code > 128)) && rank::is_orphan; then
        log::error "slurmstepd, by which Slurm runs the ranks of a node, is gone: killed, or out of memory; the program died of it, with ${code}"
        code=137
    fi
    [[ -z "${pipe}" ]] || { printf 'ended\n' >&"${pipe}"; } 2>&- || true
    # shellcheck disable=SC2153 # RANK comes from torchrun or worker.sh
    if ((code)) && failures::record_rank "${RANK}" "${code}" "${signalled}" && [[ -n "${signalled}" ]]; then
        # The program was told to end, and did. srun and torchrun would answer any code but 0 by killing the ranks that still save.
        # The batch script reads the recorded code.
        code=0
    fi
}

main() {
    # torchrun calls the node's rank GROUP_RANK. Programs find it under one name in both shapes. With the rendezvous c10d it is not
    # Slurm's number of the node.
    [[ -z "${TORCHELASTIC_RUN_ID:-}" ]] || NODE_RANK="${GROUP_RANK}"
    export NODE_RANK="${NODE_RANK:-${GROUP_RANK}}"
    ((${KIT_TORCHRUN_LOGS:-0})) || exec >>"${KIT_RUN_DIR}/logs${KIT_ROLE:+/${KIT_ROLE}}/rank-${RANK}.log" 2>&1
    # shellcheck source=/dev/null
    [[ -z "${KIT_ROLE:-}" || "${LOCAL_RANK}" != 0 ]] || source "${KIT_RUN_DIR}/lib/role_links.sh"
    ((${TORCHELASTIC_MAX_RESTARTS:-0} == 0)) || failures::start_again "${RANK}"
    log::info "${KIT_ROLE:+${KIT_ROLE}: }rank ${RANK} of ${WORLD_SIZE}: node rank ${NODE_RANK}, local rank ${LOCAL_RANK}, restart ${KIT_RESTART_COUNT}"
    rank::complete_words
    # Slurm, torchrun and signal.sh signal the program and this shell. With a handler, the shell outlives the signal and reports the
    # program's own code. Without one it would die first, and every code would become 143.
    local signalled=""
    trap 'signalled=1' TERM USR1 USR2 HUP INT
    # signal.sh finds the program by this variable: the program is the child of this shell, and processes of the program are not.
    # kit_rank compares it with the world in which the program's processes meet, which a launcher inside the rank may have changed.
    export KIT_RANK_SHELL=$$ KIT_WORLD_SIZE="${WORLD_SIZE}"
    # For kit_rank. It comes after all that set-up lines put there.
    export PYTHONPATH="${PYTHONPATH:+${PYTHONPATH}:}${KIT_RUN_DIR}/lib"
    # shellcheck source=/dev/null
    [[ ! -r "${KIT_RUN_DIR}/lib/recorder_variables.sh" ]] || source "${KIT_RUN_DIR}/lib/recorder_variables.sh"
    local -i code=0
    umask "${KIT_UMASK:-$(umask)}"
    # The pipe of lib/orphans.sh. Processes that outlive this shell must not hold it. torchrun has closed it.
    local pipe="${KIT_TASK_FD:-}"
    [[ -z "${TORCHELASTIC_RUN_ID:-}" ]] || ((${#KIT_WARM[@]})) || pipe=""
    rank::hold_slurmstepd
    local -a start=(env -u KIT_TASK_FD) warm=()
    rank::choose_start
    rank::run_program || code=$?
    rank::finish
    return "${code}"
}

main "$@"
