# The job's program, its arguments and its environment, byte for byte. Read by worker.sh and rank.sh.
# shellcheck shell=bash disable=SC2034,SC2054
KIT_PROGRAM={{ program | sh }}
KIT_PROGRAM_ENV={{ program_env | sh }}
