# The job's program, its arguments and its environment, byte for byte. Read by worker.sh and rank.sh.
# shellcheck shell=bash disable=SC2034,SC2054
readonly -a KIT_PROGRAM={{ program | sh }}
readonly -a KIT_PROGRAM_ENV={{ program_env | sh }}
