# shellcheck shell=bash
# The job's folder as it was at submit: a copy of the run's own, which the programs may write in. The first start makes it, whole or not at all.

workspace::prepare() {
    local -r folder="${KIT_RUN_DIR}/workspace"
    # The run works in the job's folder itself.
    [[ -n "${KIT_TREE}" ]] || return 0
    local -r mark="${KIT_RUN_DIR}/state/tree"
    local had=""
    [[ ! -e "${mark}" ]] || had="$(<"${mark}")"
    if [[ -d "${folder}" && "${had}" == "${KIT_TREE}" ]]; then
        workspace::say_changes "${folder}"
        return 0
    fi
    workspace::copy "${folder}.partial" || return 1
    # A failed point of a sweep that was submitted again, with other code: what its programs wrote stays.
    # An empty one was made with the run folder, to be mounted.
    [[ ! -d "${folder}" ]] || rmdir -- "${folder}" 2>/dev/null || mv --no-target-directory -- "${folder}" "${folder}.${had:0:12}.${EPOCHSECONDS}"
    mv --no-target-directory -- "${folder}.partial" "${folder}"
    printf '%s\n' "${KIT_TREE}" >"${mark}"
}

# workspace::copy FOLDER: no two files of it are one, as they may be in the store, and all may be written.
workspace::copy() {
    local -r folder="$1"
    local found
    found="$(sha256sum <"${KIT_SNAPSHOT}/listing")" || workspace::fail "cannot be read" || return 1
    [[ "${found%% *}" == "${KIT_TREE}" ]] || workspace::fail "has another listing than that of the submit" || return 1
    rm -rf -- "${folder}"
    cp --recursive --no-dereference --reflink=auto --preserve=mode,timestamps -- "${KIT_SNAPSHOT}/files" "${folder}" \
        || workspace::fail "cannot be copied to ${folder}" || return 1
    chmod --recursive u+w -- "${folder}"
    chmod 0700 -- "${folder}"
    workspace::differences "${folder}"
    ((${#workspace_differ[@]} == 0)) || workspace::fail "has other contents than at the submit: ${workspace_differ[*]:0:5}"
}

# Programs may change what was submitted, in their own copy: the next start continues with it.
workspace::say_changes() {
    workspace::differences "$1"
    ((${#workspace_differ[@]} == 0)) \
        || log::info "workspace: ${#workspace_differ[@]} of the submitted files were changed by the run, such as ${workspace_differ[0]}"
}

# workspace::differences FOLDER: into workspace_differ, the files that are not as submitted.
workspace::differences() {
    workspace_differ=()
    grep --quiet --invert-match '^#' -- "${KIT_SNAPSHOT}/listing" || return 0
    mapfile -t workspace_differ < <(cd -- "$1" && LC_ALL=C sha256sum --check --quiet -- "${KIT_SNAPSHOT}/listing" 2>/dev/null)
}

workspace::fail() {
    # The next submit of the same files looks at each of them, and replaces what is not as it was.
    : 2>/dev/null >"${KIT_SNAPSHOT}/damaged" || true
    log::error "the workspace in ${KIT_SNAPSHOT} $1; submit the job again"
    return 1
}
