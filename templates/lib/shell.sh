#!/bin/bash
# shellcheck source-path=SCRIPTDIR/..
# An interactive shell with what a rank would find: the image's environment, the caches, the job's variables, its secrets.
set -uo pipefail

KIT_RUN_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"
readonly KIT_RUN_DIR
source "${KIT_RUN_DIR}/lib/log.sh"
source "${KIT_RUN_DIR}/lib/caches.sh"
source "${KIT_RUN_DIR}/image-env.sh"
source "${KIT_RUN_DIR}/program.sh"

export KIT_RUN_DIR KIT_CHECKPOINT_DIR="${KIT_RUN_DIR}/checkpoints" KIT_RESTART_COUNT=0
export PYTHONPATH="${KIT_RUN_DIR}/code" PYTHONNOUSERSITE=1
caches::point_at "${KIT_SHELL_CACHE:-/kit/cache}"
if [[ -r "${KIT_RUN_DIR}/.secrets" ]]; then
    # shellcheck source=/dev/null
    source "${KIT_RUN_DIR}/.secrets"
fi
if [[ -s "${KIT_RUN_DIR}/setup.sh" ]]; then
    # shellcheck source=/dev/null
    source "${KIT_RUN_DIR}/setup.sh"
fi
log::info "shell in the job's container; the program would be: ${KIT_PROGRAM[*]@Q}"
exec env -- "${KIT_PROGRAM_ENV[@]}" bash --norc -i
