#!/bin/bash
{% for option in sbatch %}
#SBATCH {{ option }}
{% endfor %}

readonly KIT_ARRAY_DIR={{ array_dir | sh }}
readonly -a KIT_SEARCH_ARGV={{ search_argv | sh }}

# Task n runs the point of line n of this folder's list, whose run folder it makes first. Where there is no list, all folders have
# been made, and link n of this folder points to one.
# Below this line nothing is generated.

# require_own FOLDER PATH...: what the task runs lies in folders that may wait for days where others can write. So these, below
# FOLDER, must be this user's. The batch script checks the rest of its run folder.
require_own() {
    local others
    others="$(cd -- "$1" && find "${@:2}" -maxdepth 0 \( ! -uid "${EUID}" -o -perm /022 -o -type l \) -printf "$1/%p (of %u, mode %m) ")" \
        || others+="$1 lacks files"
    [[ -n "${others}" ]] || return 0
    printf 'the sweep is not what was submitted, and nothing of it is run: %s\n  try: kit sweep\n' "${others}" >&2
    exit 72
}

require_own "${KIT_ARRAY_DIR}" . .. ../..
point="${KIT_ARRAY_DIR}/${SLURM_ARRAY_TASK_ID}"
if [[ -f "${KIT_ARRAY_DIR}/points" ]]; then
    require_own "${KIT_ARRAY_DIR}" points make_point.sh
    point="$(bash -- "${KIT_ARRAY_DIR}/make_point.sh" "${KIT_ARRAY_DIR}" "${SLURM_ARRAY_TASK_ID}" "${SLURM_ARRAY_JOB_ID}" </dev/null)" || {
        code=$?
        printf 'the run folder of task %s was not made\n' "${SLURM_ARRAY_TASK_ID}" >&2
        exit "${code}"
    }
fi
readonly point
require_own "${point}" . .. batch.sh

# Seconds that a point of a search waits for suggested values. Without them it runs with its planned values.
readonly suggestion_timeout=180
if ((${#KIT_SEARCH_ARGV[@]})); then
    timeout --kill-after=5 "${suggestion_timeout}" "${KIT_SEARCH_ARGV[@]}" ask "${point}" </dev/null \
        || printf 'search: nothing was suggested (code %d): the point runs with the values that were drawn at submit\n' "$?" >&2
    # The watch ends with its parent: this process, which becomes the batch script.
    "${KIT_SEARCH_ARGV[@]}" watch "${point}" "$$" </dev/null &
fi
exec "${point}/batch.sh"
