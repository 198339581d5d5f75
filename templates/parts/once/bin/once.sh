#!/bin/bash
# once.sh FOLDER [ROLE-FOLDER]: runs the lines of [once], or of the table in KIT_LINES, after the set-up lines, with the image's and the job's environment and its
# secrets.
# shellcheck source-path=SCRIPTDIR/..
set -uo pipefail

readonly KIT_RUN_DIR="${BASH_SOURCE[0]%/bin/*}"
source "${KIT_RUN_DIR}/lib/clock.sh"
source "${KIT_RUN_DIR}/lib/log.sh"
source "${KIT_RUN_DIR}/lib/failures.sh"
source "${KIT_RUN_DIR}/lib/orphans.sh"
source "${KIT_RUN_DIR}/lib/setup_lines.sh"
# shellcheck source=/dev/null
source "${KIT_RUN_DIR}/${2:+$2/}image-env.sh"
# shellcheck source=/dev/null
source "${KIT_RUN_DIR}/${2:+$2/}program.sh"

main() {
    local file
    # Pyxis passes it on from the step, where it is for Enroot.
    unset BASH_ENV
    # A line may leave a process behind that holds the pipe open. The trap tells that the step has ended.
    orphans::watch once
    export -n KIT_TASK_FD KIT_SLURMSTEPD
    trap orphans::ended EXIT
    export KIT_RUN_DIR KIT_CHECKPOINT_DIR="${KIT_RUN_DIR}/checkpoints"
    export PYTHONPATH="${KIT_RUN_DIR}/code" PYTHONNOUSERSITE=1 PYTHONUNBUFFERED=1
    if [[ -r "${KIT_RUN_DIR}/.secrets" ]]; then
        # shellcheck source=/dev/null
        source "${KIT_RUN_DIR}/.secrets"
    fi
    local pair
    for pair in "${KIT_PROGRAM_ENV[@]}"; do
        export "${pair?}"
    done
    cd -- "$1" || exit
    set +u
    for file in setup.sh "${KIT_LINES:-once}-lines.sh"; do
        [[ -s "${KIT_RUN_DIR}/${file}" ]] || continue
        if ! setup_lines::run "${KIT_RUN_DIR}/${file}"; then
            log::error "${file}: ${setup_lines_said}"
            exit "${setup_lines_code}"
        fi
    done
}

main "$@"
