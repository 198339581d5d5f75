#!/bin/bash
{% for option in sbatch %}
#SBATCH {{ option }}
{% endfor %}

readonly KIT_ARRAY_DIR={{ array_dir | sh }}
readonly -a KIT_SEARCH_ARGV={{ search_argv | sh }}

# Task n runs what link n of this folder points at: the run folder of one point.
# Below this line nothing is generated.
readonly point="${KIT_ARRAY_DIR}/${SLURM_ARRAY_TASK_ID}"

# Seconds that a point of a search waits for its values. Without them it runs with those that it was planned with.
readonly suggestion_timeout=180
if ((${#KIT_SEARCH_ARGV[@]})); then
    timeout --kill-after=5 "${suggestion_timeout}" "${KIT_SEARCH_ARGV[@]}" ask "${point}" </dev/null \
        || printf 'search: nothing was suggested (code %d): the point runs with the values that were drawn at submit\n' "$?" >&2
    # Its parent is this process, which becomes the batch script.
    "${KIT_SEARCH_ARGV[@]}" watch "${point}" "$$" </dev/null &
fi
exec "${point}/batch.sh"
