# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # names that other libraries set or read
# The image of a run stays the image that it began with.

# Checks that every start of the ranks, also after a requeue, uses the same image bytes as the first.
pinned_image::check_image() {
    local -i i
    for ((i = 0; i < ${#KIT_IMAGES[@]}; i += 2)); do
        pinned_image::check_one "${KIT_IMAGES[i]}" "${KIT_IMAGES[i + 1]}" || return $?
    done
}

# pinned_image::check_one FILE DIGEST: inode, size and time show that it is the same file. If they changed, its digest decides.
pinned_image::check_one() {
    [[ "$1" == /* && "$2" == sha256:* ]] || return 0
    local -r record="${KIT_RUN_DIR}/state/image-${2#sha256:}"
    local found digest
    # The preflight reports a missing image, on every node.
    found="$(stat --dereference --format='%i %s %.9Y %.9Z' -- "$1" 2>/dev/null)" || return 0
    if [[ -r "${record}" && "${found}" != "$(<"${record}")" ]]; then
        log::info "image $1 is not the file that this run began with; computing its digest"
        digest="$(sha256sum -- "$1")"
        if [[ "sha256:${digest%% *}" != "$2" ]]; then
            log::error "image $1 was replaced under the run: it has the digest sha256:${digest%% *}, the run is pinned to $2"
            return "${failures_refused_code}"
        fi
    fi
    printf '%s\n' "${found}" >"${record}"
}
