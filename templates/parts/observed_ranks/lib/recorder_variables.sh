# shellcheck shell=bash
# In jobs with [watch]: at a time-out of NCCL, torch writes the last collectives of each rank into the run folder, where `kit why` reads
# them. Values from the job or its set-up lines stay. Older versions of torch
# know only the TORCH_NCCL names.

export TORCH_NCCL_TRACE_BUFFER_SIZE="${TORCH_NCCL_TRACE_BUFFER_SIZE:-${TORCH_FR_BUFFER_SIZE:-2000}}"
export TORCH_NCCL_DUMP_ON_TIMEOUT="${TORCH_NCCL_DUMP_ON_TIMEOUT:-1}"
# torch appends the rank.
export TORCH_FR_DUMP_TEMP_FILE="${TORCH_FR_DUMP_TEMP_FILE:-${KIT_RUN_DIR}/state/${KIT_FAILURES:-.}/collectives-}"
export TORCH_NCCL_DEBUG_INFO_TEMP_FILE="${TORCH_NCCL_DEBUG_INFO_TEMP_FILE:-${TORCH_FR_DUMP_TEMP_FILE}}"
