#!/bin/bash
# stage.sh SOURCE SHA256 FOLDER CAP_KB: one task per node, before everything else. Copies the image to this node's own disk, once,
# verified. FOLDER is local and the user's own, so flock is enough. A copy is complete or does not exist.
set -uo pipefail

# shellcheck source-path=SCRIPTDIR
source "${BASH_SOURCE[0]%/*}/../lib/log.sh"
# shellcheck source-path=SCRIPTDIR
source "${BASH_SOURCE[0]%/*}/../lib/trust.sh"

fail() {
    log::error "image not staged: $*"
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

main() {
    local -r source="$1" sha256="$2" folder="$3" cap_kb="$4"
    local -r target="${folder}/${sha256}.sqsh" partial="${folder}/.partial-${sha256}"
    # The folder above also holds other caches of the user.
    trust::private_folder "$(dirname -- "${folder}")" || fail "${trust_problem}"
    trust::private_folder "${folder}" || fail "${trust_problem}"
    exec {lock}>"${folder}/.lock" || fail "${folder} cannot be written"
    flock "${lock}" || fail "${folder}/.lock cannot be locked"
    # Whoever held the lock before is gone, so a partial copy will never be completed.
    rm -f -- "${folder}"/.partial-*
    local found
    if [[ -e "${target}" ]]; then
        found="$(trust::digest "${target}" "${folder}/.verified")"
        if [[ "${found}" != "${sha256}" ]]; then
            rm -f -- "${target}"
            fail "${target} has the digest ${found}, the lock says ${sha256}; removed, the next start copies it again"
        fi
        # The last use is the time of another file: touching the image would change its own times, by which its digest is
        # remembered.
        touch -- "${folder}/.used-${sha256}"
        return 0
    fi
    [[ -r "${source}" ]] || fail "${source} is not readable here"
    local -ri wanted_kb=$(($(stat --dereference --format=%s -- "${source}") / 1024 + 1))
    ((wanted_kb <= cap_kb)) || fail "it has ${wanted_kb} KB, and at most ${cap_kb} are kept here (image.cap_gb)"
    make_room "${folder}" "${cap_kb}" "${wanted_kb}"
    trap 'rm -f -- "${partial}"' EXIT
    cp -- "${source}" "${partial}" || fail "the copy to ${folder} failed; free space: $(df --output=avail -h -- "${folder}" | tail -n 1)"
    found="$(sha256sum -- "${partial}")"
    [[ "${found%% *}" == "${sha256}" ]] || fail "the copy has the digest ${found%% *}, the lock says ${sha256}"
    sync -- "${partial}"
    mv -- "${partial}" "${target}"
    touch -- "${folder}/.used-${sha256}"
    log::info "image staged to ${target}"
}

main "$@"
