#!/bin/bash
# checked.sh [COUNT WORD…]… 0 COMMAND…: runs each step of COUNT words, then becomes the command. Where a step fails, it exits with
# 72, like the preflight of a batch job. `kit shell` uses it, because it has no batch script. It runs where salloc does.
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
