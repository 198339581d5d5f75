#!/bin/bash
{% for option in sbatch %}
#SBATCH {{ option }}
{% endfor %}

readonly KIT_ARRAY_DIR={{ array_dir | sh }}
readonly -a KIT_SEARCH_ARGV={{ search_argv | sh }}

# Task n runs the point of line n of this folder's list, whose run folder it makes first. Where there is no list, all folders have
# been made, and link n of this folder points to one.
# Below this line nothing is generated.
point="${KIT_ARRAY_DIR}/${SLURM_ARRAY_TASK_ID}"
if [[ -f "${KIT_ARRAY_DIR}/points" ]]; then
    point="$(bash -- "${KIT_ARRAY_DIR}/make_point.sh" "${KIT_ARRAY_DIR}" "${SLURM_ARRAY_TASK_ID}" "${SLURM_ARRAY_JOB_ID}" </dev/null)" || {
        printf 'the run folder of task %s was not made\n' "${SLURM_ARRAY_TASK_ID}" >&2
        exit 1
    }
fi
readonly point

# Seconds that a point of a search waits for suggested values. Without them it runs with its planned values.
readonly suggestion_timeout=180
if ((${#KIT_SEARCH_ARGV[@]})); then
    timeout --kill-after=5 "${suggestion_timeout}" "${KIT_SEARCH_ARGV[@]}" ask "${point}" </dev/null \
        || printf 'search: nothing was suggested (code %d): the point runs with the values that were drawn at submit\n' "$?" >&2
    # The watch ends with its parent: this process, which becomes the batch script.
    "${KIT_SEARCH_ARGV[@]}" watch "${point}" "$$" </dev/null &
fi
exec "${point}/batch.sh"
