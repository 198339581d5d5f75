#!/bin/bash
# preflight.sh IMAGE CACHE SOURCE…: one task per node, before the ranks. Says what this node lacks, all of it at once.
set -uo pipefail

# shellcheck source-path=SCRIPTDIR
source "$(dirname -- "${BASH_SOURCE[0]}")/log.sh"

main() {
    local -r image="$1" cache="$2"
    shift 2
    local -i faults=0
    local path
    if [[ -n "${image}" && ! -r "${image}" ]]; then
        log::error "image ${image} is not readable here: is the image store on a file system that every node mounts?"
        faults+=1
    fi
    if ! (umask 077 && mkdir -p -- "${cache}") 2>/dev/null || [[ ! -w "${cache}" ]]; then
        log::error "cache folder ${cache} cannot be made or written; set paths.cache of the cluster to a local folder of yours"
        faults+=1
    fi
    for path in "$@"; do
        if [[ ! -e "${path}" ]]; then
            log::error "mount source ${path} does not exist here"
            faults+=1
        fi
    done
    ((faults == 0))
}

main "$@"
