#!/bin/bash
# stage.sh STORED SHA256 FOLDER CAP_KB: one task per node, before everything else. Copies the image to this node's own disk, once,
# verified. FOLDER is local and the user's own, so flock is enough. A copy is complete or does not exist. With KIT_IMAGE_CHAIN, a file
# of the coordinator, the nodes pass the image on to each other, and only one reads STORED.
# shellcheck source-path=SCRIPTDIR
set -uo pipefail

source "${BASH_SOURCE[0]%/*}/../lib/clock.sh"
source "${BASH_SOURCE[0]%/*}/../lib/log.sh"
source "${BASH_SOURCE[0]%/*}/../lib/trust.sh"
if [[ -n "${KIT_IMAGE_CHAIN:-}" ]]; then
    source "${BASH_SOURCE[0]%/*}/../lib/image_chain.sh"
fi

readonly node="${SLURMD_NODENAME:-$(uname -n)}"
# Where the batch script looks for the reason of a failure.
readonly failed="${BASH_SOURCE[0]%/bin/*}/state/stage/${node}.failed"
# What is removed at the end: an incomplete copy, unless this script was killed with KILL. Then the next start continues it.
partial=""
trap '[[ -z "${partial}" ]] || rm -f -- "${partial}"' EXIT

# Reports the reason to the batch script in a file, and ends.
fail() {
    log::error "image not staged: $*"
    printf '%s\n' "$*" 2>/dev/null >"${failed}"
    [[ -z "${KIT_IMAGE_CHAIN:-}" ]] || image_chain::leave "${node}" "$*"
    exit 1
}

# Removes the least recently used images. An image that a job has open may go: its blocks stay until the job has closed it.
make_room() {
    local -r folder="$1"
    local -ri cap_kb="$2" wanted_kb="$3"
    local oldest used
    while (($(du --summarize --block-size=1K -- "${folder}" | cut -f 1) + wanted_kb > cap_kb)); do
        oldest="$(last_used "${folder}" | sort --numeric-sort | head -n 1 | cut -d ' ' -f 2-)"
        [[ -n "${oldest}" ]] || return 0
        log::info "removes ${oldest##*/} from ${folder}: at most ${cap_kb} KB are kept"
        used="${oldest##*/}"
        rm -f -- "${oldest}" "${folder}/.used-${used%.sqsh}"
    done
}

# last_used FOLDER: prints a line for each image, with the seconds of its last use and its path.
last_used() {
    local image name
    for image in "$1"/*.sqsh; do
        [[ -e "${image}" ]] || continue
        name="${image##*/}"
        stat --format="%Y ${image}" -- "$1/.used-${name%.sqsh}" 2>/dev/null || stat --format='%Y %n' -- "${image}"
    done
}

# The functions below read main's variables.

# Sets `chained` if this node takes part in the chain.
choose_way() {
    chained=""
    [[ -n "${KIT_IMAGE_CHAIN:-}" ]] || return 0
    if image_chain::possible; then
        chained=1
    else
        unset KIT_IMAGE_CHAIN
        log::info "no python3 of 3.8 or newer on this node: it copies the image from the store"
    fi
}

# take_from_chain WAY: takes the image from the other nodes, or only sends it to them.
take_from_chain() {
    local -i code
    image_chain::part "${node}" "$1" "${stored}" "${partial}" "${target}" "${lock}"
    code=$?
    ((code < 128)) || fail "the program that passes the image on was killed (${code})"
    ((code == 0)) || exit "${code}"
}

copy_from_store() {
    local found
    cp -- "${stored}" "${partial}" || fail "the copy to ${folder} failed; free space: $(df --output=avail -h -- "${folder}" | tail -n 1)"
    found="$(sha256sum -- "${partial}")"
    [[ "${found%% *}" == "${sha256}" ]] || fail "the copy has the digest ${found%% *}, the lock says ${sha256}"
    sync -- "${partial}"
    mv -- "${partial}" "${target}"
}

# Removes what killed starts have left. Whoever held the lock before is gone. Only the chain continues a partial copy.
remove_partial_copies() {
    local one
    for one in "${folder}"/.partial-*; do
        [[ -n "${chained}" && "${one}" == "${folder}/.partial-${sha256}" ]] || rm -f -- "${one}"
    done
}

# Checks the copy that is there. Returns 1 where there is none.
use_copy() {
    local found
    [[ -e "${target}" ]] || return 1
    found="$(trust::digest "${target}" "${memory}")"
    if [[ "${found}" != "${sha256}" ]]; then
        rm -f -- "${target}"
        fail "${target} has the digest ${found}, the lock says ${sha256}; removed, the next start copies it again"
    fi
    # The last use is the time of another file: touching the image would change its own times, by which its digest is remembered.
    touch -- "${folder}/.used-${sha256}"
}

main() {
    local -r stored="$1" sha256="$2" folder="$3" cap_kb="$4"
    local -r target="${folder}/${sha256}.sqsh" memory="${folder}/.verified"
    choose_way
    # The folder above also holds other caches of the user.
    trust::private_folder "$(dirname -- "${folder}")" || fail "${trust_problem}"
    trust::private_folder "${folder}" || fail "${trust_problem}"
    exec {lock}>"${folder}/.lock" || fail "${folder} cannot be written"
    flock "${lock}" || fail "${folder}/.lock cannot be locked"
    remove_partial_copies
    if use_copy; then
        [[ -z "${chained}" ]] || take_from_chain send
        return 0
    fi
    [[ -r "${stored}" ]] || fail "${stored} is not readable here"
    local -ri wanted_kb=$(($(stat --dereference --format=%s -- "${stored}") / 1024 + 1))
    ((wanted_kb <= cap_kb)) || fail "it has ${wanted_kb} KB, and at most ${cap_kb} are kept here (image.cap_gb)"
    make_room "${folder}" "${cap_kb}" "${wanted_kb}"
    partial="${folder}/.partial-${sha256}"
    if [[ -n "${chained}" ]]; then
        take_from_chain take
    else
        copy_from_store
    fi
    partial=""
    touch -- "${folder}/.used-${sha256}"
    log::info "image staged to ${target}"
}

main "$@"
