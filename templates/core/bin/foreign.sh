#!/bin/bash
{% for option in sbatch %}
#SBATCH {{ option }}
{% endfor %}
# Runs the file `script` of the run folder, which is not the kit's, as it is. Records its start, signals and end.
# shellcheck source-path=SCRIPTDIR disable=SC2034,SC2154

readonly KIT_RUN_DIR={{ run_dir | sh }}
readonly KIT_SNAPSHOT={{ snapshot | sh }}
readonly KIT_TREE={{ tree | sh }}
readonly KIT_CODE={{ code | sh }}
readonly KIT_FOLDER={{ folder | sh }}
readonly KIT_SUBMIT_DIR={{ submit_dir | sh }}
readonly -a KIT_ARGS={{ args | sh }}

# Below this line nothing is generated.
set -uo pipefail

# include core/own_code.sh
require_own_code bin lib script

source "${KIT_RUN_DIR}/lib/clock.sh"
source "${KIT_RUN_DIR}/lib/log.sh"
source "${KIT_RUN_DIR}/lib/numbers.sh"
source "${KIT_RUN_DIR}/lib/environment.sh"
source "${KIT_RUN_DIR}/lib/output_links.sh"
source "${KIT_RUN_DIR}/lib/slurm.sh"
source "${KIT_RUN_DIR}/lib/events.sh"
source "${KIT_RUN_DIR}/lib/retry.sh"
# shellcheck source=/dev/null
source "${KIT_RUN_DIR}/lib/workspace.sh"

# The signals that end a program which has no handler.
readonly passed_on="HUP INT QUIT USR1 USR2 ALRM TERM"
# Tenths of a second that a signal to all processes of the job may need for each of them.
readonly spread_tenths=5
# What a script returns that Slurm's KILL ended: 128 + SIGKILL.
readonly killed_code=137
# Signals that came, each with its time.
declare -a signals_came=()
signals_got="" signals_slurms_term="" witness_pid="" script_pid="" last_words_pid=""

# Slurm sends a signal to the batch shell alone (--signal=B:…, scancel --batch), or to all processes of the job. Of the first kind,
# the script would get none. This child has no handler: only a signal of the second kind ends it.
witness() {
    (
        # shellcheck disable=SC2086 # names of signals
        trap - ${passed_on}
        exec sleep infinity
    ) </dev/null >/dev/null 2>&1 &
    witness_pid=$!
    # bash would name it on stderr, which is the script's, once it has ended.
    disown "${witness_pid}"
}

# Whether it has not ended. This shell waits for it later, so until then it is a zombie.
witness_lives() {
    local line=""
    { IFS= read -r -d '' line <"/proc/${witness_pid}/stat"; } 2>/dev/null
    [[ -n "${line}" && "${line##*) }" != [ZX]* ]]
}

start_script() {
    (
        # shellcheck disable=SC2086 # names of signals
        trap - ${passed_on}
        cd -- "${KIT_FOLDER}" || exit 1
        export SLURM_SUBMIT_DIR="${KIT_SUBMIT_DIR}" KIT_RUN_DIR
        if [[ -n "${KIT_BASH_ENV:-}" ]]; then
            export BASH_ENV="${KIT_BASH_ENV}"
            unset KIT_BASH_ENV
        fi
        exec env --unset=KIT_RESTART_COUNT "${KIT_RUN_DIR}/script" "${KIT_ARGS[@]}"
    ) &
    script_pid=$!
}

# pass_on NAME TIME: handles a signal that came at this time (EPOCHSECONDS).
pass_on() {
    local -i tenths
    signals_got="$1"
    for ((tenths = 0; tenths < spread_tenths; tenths++)); do
        witness_lives || break
        sleep 0.1
    done
    if witness_lives; then
        [[ -z "${script_pid}" ]] || kill -s "$1" "${script_pid}" 2>/dev/null
        signals_got="B:$1"
    else
        witness
    fi
    events::record signal name "${signals_got}"
    [[ "${signals_got}" == TERM && -z "${signals_slurms_term}" ]] || return 0
    signals_slurms_term=1
    slurm::set_end "$2"
    last_words </dev/null >/dev/null 2>&1 &
    last_words_pid=$!
    disown "${last_words_pid}"
}

# Just before Slurm's KILL, which would leave no record: a script that is still there is about to be killed. If the job continues, the
# TERM was one of `scancel --signal`.
last_words() {
    trap '' TERM
    local -i code
    sleep "$((slurm_killed_at - EPOCHSECONDS > slurm_reserve_s ? slurm_killed_at - EPOCHSECONDS - slurm_reserve_s : 1))"
    retry::is_running "${slurm_least_s}"
    code=$?
    ((code == 1)) || return 0
    record_end "${killed_code}"
}

# The run's copy of the job's folder, which the first start makes. It may take minutes, and no signal reaches its programs: a copy
# that ends halfway looks like a damaged snapshot. At the first signal it is killed as a whole, and the next start makes it anew.
copy_workspace() {
    local -i pid code
    local children=""
    [[ -n "${KIT_TREE}" ]] || return 0
    (
        # shellcheck disable=SC2086 # names of signals
        trap '' ${passed_on}
        workspace::listed || exit 1
        [[ -e "${KIT_RUN_DIR}/state/tree" ]] || workspace::prepare
    ) &
    pid=$!
    ((${#signals_came[@]})) || wait "${pid}"
    code=$?
    ((${#signals_came[@]})) || return "${code}"
    { read -r children <"/proc/${pid}/task/${pid}/children"; } 2>/dev/null
    # shellcheck disable=SC2086 # process ids; the copy's shell is killed first, so that it does not see how its programs end
    kill -KILL "${pid}" ${children} 2>/dev/null
    wait "${pid}" 2>/dev/null
    return 1
}

# Handles the signals that came before the script was there to get them. Returns what a program does that the first of them ended,
# or 0 if none came.
handle_early_signals() {
    local one
    local -i code=0
    for one in "${signals_came[@]}"; do
        pass_on "${one%% *}" "${one##* }"
        ((code)) || code=$((128 + $(kill -l "${one%% *}")))
    done
    return "${code}"
}

record_end() {
    local now
    retry::record_end "$1"
    clock::now now
    printf '%s\n' "${now}" >"${KIT_RUN_DIR}/state/closed" || true
}

# Returns the script's code. A signal ends `wait` early, and its trap only notes it: a command in a trap that interrupts `wait` may
# take the end of the script away from it.
wait_for_script() {
    local one ended=""
    local -i code handled=0
    while true; do
        # bash would name a script that a signal has ended on stderr, which is the script's own.
        wait "${script_pid}" 2>/dev/null
        code=$?
        if ((handled == ${#signals_came[@]})); then
            # Slurm signals one process after the other: the script may have ended by a signal that comes here a moment later.
            [[ -z "${ended}" ]] || break
            ended=1
            sleep 0.1
        fi
        while ((handled < ${#signals_came[@]})); do
            one="${signals_came[handled]}"
            handled+=1
            pass_on "${one%% *}" "${one##* }"
        done
    done
    return "${code}"
}

main() {
    local -i code
    local nodes name
    environment::require_allocation
    output_links::link
    for name in ${passed_on}; do
        # shellcheck disable=SC2064 # the name of now
        trap "signals_came+=(\"${name} \${EPOCHSECONDS}\")" "${name}"
    done
    witness
    nodes="$(scontrol show hostnames "${SLURM_JOB_NODELIST}" | tr '\n' ',')"
    events::record start nodes "${SLURM_JOB_NODELIST}"
    retry::count_start
    events::record attempt nodes "${nodes%,}"
    copy_workspace
    code=$?
    if ((${#signals_came[@]})); then
        handle_early_signals
        code=$?
    elif ((code == 0)); then
        start_script
        wait_for_script
        code=$?
    fi
    [[ -z "${last_words_pid}" ]] || kill -KILL "${last_words_pid}" 2>/dev/null
    kill -KILL "${witness_pid}" 2>/dev/null
    if [[ "${signals_got}" == TERM ]] && retry::slurm_requeued; then
        events::record requeue exit_code "${code}"
    else
        record_end "${code}"
    fi
    exit "${code}"
}

main "$@"
