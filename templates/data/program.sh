# The job's program, its arguments and its environment, unchanged to the byte. Read by worker.sh and rank.sh.
# shellcheck shell=bash disable=SC2034,SC2054
KIT_PROGRAM={{ program | sh }}
KIT_PROGRAM_ENV={{ program_env | sh }}
{% if warm %}
# Modules that one process of each node imports, from which its ranks are forked.
KIT_WARM={{ warm | sh }}
{% endif %}
{% if keep %}
# A rank that can lives on when another one dies.
KIT_KEEP=1
{% endif %}
{% if memory %}
# Steps are kept in the memory of the nodes.
KIT_MEMORY=1
{% endif %}
{% if rank_args %}
# Options, each with the variable that holds its value on each rank.
KIT_RANK_ARGS={{ rank_args | sh }}
{% endif %}
