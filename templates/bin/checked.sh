#!/bin/bash
# checked.sh [COUNT WORD…]… 0 COMMAND…: runs each step of COUNT words, then becomes the command; a step that fails ends it with 72, as
# the preflight of a batch job does. It runs where salloc does: for `kit shell`, which has no batch script.
set -uo pipefail

# shellcheck source-path=SCRIPTDIR
source "${BASH_SOURCE[0]%/*}/../lib/log.sh"

main() {
    local -ri failed=72
    mkdir -p -- "${BASH_SOURCE[0]%/bin/*}/state/preflight"
    local -i count
    while ((count = $1)); do
        shift
        if ! "${@:1:count}" </dev/null; then
            log::error "no shell is opened: the checks of a node failed"
            exit "${failed}"
        fi
        shift "${count}"
    done
    shift
    exec "$@"
}

main "$@"
