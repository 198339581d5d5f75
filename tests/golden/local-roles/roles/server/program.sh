# The job's program, its arguments and its environment, unchanged to the byte. Read by worker.sh and rank.sh.
# shellcheck shell=bash disable=SC2034,SC2054
KIT_PROGRAM=(
    serve
    --port
    '{server.port.http}'
)
KIT_PROGRAM_ENV=(
    OMP_NUM_THREADS=1
)
