# shellcheck shell=bash
# DEBUG=on|y|yes|t|true|1, in any case, turns on debug output of the scripts and the frameworks. Other values, also "not" and "21",
# do not.

debug::is_true() {
    case "${1,,}" in
        1 | on | y | yes | t | true) return 0 ;;
        *) return 1 ;;
    esac
}

debug::enable_if_asked() {
    export KIT_DEBUG=0
    if debug::is_true "$1"; then
        KIT_DEBUG=1
        PS4='+ ${BASH_SOURCE##*/}:${LINENO}: '
        set -x
    fi
}

# The worker does not trace itself: its next command carries the job's environment, which may hold secrets.
debug::frameworks() {
    if ! debug::is_true "${KIT_DEBUG:-0}"; then
        return 0
    fi
    export NCCL_DEBUG="${NCCL_DEBUG:-INFO}" NCCL_DEBUG_SUBSYS="${NCCL_DEBUG_SUBSYS:-INIT,ENV,NET}"
    export CUDA_LAUNCH_BLOCKING="${CUDA_LAUNCH_BLOCKING:-1}"
    # Not DETAIL: with it, torch 2.13 without CUDA crashes in the first DistributedDataParallel (a segmentation fault in
    # _ddp_init_helper).
    export TORCH_DISTRIBUTED_DEBUG="${TORCH_DISTRIBUTED_DEBUG:-INFO}"
    export TORCH_CPP_LOG_LEVEL="${TORCH_CPP_LOG_LEVEL:-INFO}"
}
