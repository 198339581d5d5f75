# The job's program, its arguments and its environment, byte for byte. Read by worker.sh and rank.sh.
# shellcheck shell=bash disable=SC2034,SC2054
KIT_PROGRAM={{ program | sh }}
KIT_PROGRAM_ENV={{ program_env | sh }}
{% if rank_args %}
# Options and the variables whose values they get on each rank.
KIT_RANK_ARGS={{ rank_args | sh }}
{% endif %}
