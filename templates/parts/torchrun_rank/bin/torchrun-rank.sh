#!/bin/bash
# Runs in front of rank.sh where torchrun shows or writes output (torchrun.tee, redirects, log_dir, local_ranks_filter). torchrun
# writes to files that it names after local ranks, in a folder of a random name. Each gets a link beside the rank's own log:
# rank-<n>.<start>.stderr.log. What torchrun does not write to a file goes to the rank's log, as without these options.
# shellcheck source-path=SCRIPTDIR/..
set -euo pipefail

readonly KIT_RUN_DIR="${BASH_SOURCE[0]%/bin/*}"
source "${KIT_RUN_DIR}/lib/log.sh"

# link STREAM FD: fails where the rank's stream is not the file that torchrun names so.
link() {
    local file="${TORCHELASTIC_ERROR_FILE%/*}/$1.log"
    [[ "${file}" -ef "/proc/self/fd/$2" ]] || return 1
    # Outside the container the folder may have another path.
    ln -- "${file}" "${log}.${start}.$1.log" 2>/dev/null || ln -s -- "${file}" "${log}.${start}.$1.log"
}

main() {
    # shellcheck disable=SC2153 # RANK comes from torchrun
    local -r log="${KIT_RUN_DIR}/logs${KIT_ROLE:+/${KIT_ROLE}}/rank-${RANK}"
    local -i start=1 own stderr
    while compgen -G "${log}.${start}.std*.log" >/dev/null; do
        start+=1
    done
    exec {own}>>"${log}.log"
    link stdout 1 || exec >&"${own}"
    if link stderr 2; then
        # rank.sh writes the same line to torchrun's file.
        exec {stderr}>&2 2>&"${own}"
        log::info "${KIT_ROLE:+${KIT_ROLE}: }rank ${RANK} of ${WORLD_SIZE}: node rank ${GROUP_RANK}, local rank ${LOCAL_RANK}, restart ${KIT_RESTART_COUNT}"
        log::info "torchrun writes what it prints to ${TORCHELASTIC_ERROR_FILE%/*}"
        exec 2>&"${stderr}" {stderr}>&-
    else
        exec 2>&"${own}"
    fi
    exec {own}>&-
    exec "${KIT_RUN_DIR}/bin/rank.sh"
}

main "$@"
