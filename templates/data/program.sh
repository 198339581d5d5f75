# The job's program, its arguments and its environment, unchanged to the byte. Read by worker.sh and rank.sh.
# shellcheck shell=bash disable=SC2034,SC2054
KIT_PROGRAM={{ program | sh }}
KIT_PROGRAM_ENV={{ program_env | sh }}
{% if rank_args %}
# Options, each with the variable that holds its value on each rank.
KIT_RANK_ARGS={{ rank_args | sh }}
{% endif %}
