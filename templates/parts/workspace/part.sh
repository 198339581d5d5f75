# shellcheck shell=bash
# The job's folder as it was at submit: the run's own copy, which programs may change. The first start makes it, completely or not
# at all.

# Before nodes look for the folder (the part preflight, where the run has it): an empty one, if it is not the copy of this snapshot.
# After a failed point of a sweep was submitted again with other code, what its programs wrote is kept beside it.
workspace::listed() {
    local -r folder="${KIT_RUN_DIR}/workspace" mark="${KIT_RUN_DIR}/state/tree"
    local had=""
    [[ ! -e "${mark}" ]] || had="$(<"${mark}")"
    [[ ! -d "${folder}" || "${had}" != "${KIT_TREE}" ]] || return 0
    if [[ -d "${folder}" ]] && ! rmdir -- "${folder}" 2>/dev/null; then
        mv --no-target-directory -- "${folder}" "${folder}.${had:0:12}.${EPOCHSECONDS}"
    fi
    rm -f -- "${mark}"
    mkdir --mode=0700 -- "${folder}"
}

# While the nodes check themselves.
workspace::prepare() {
    local -r folder="${KIT_RUN_DIR}/workspace"
    if [[ -e "${KIT_RUN_DIR}/state/tree" ]]; then
        workspace::say_changes "${folder}"
        return 0
    fi
    workspace::copy "${folder}.partial" || return 1
    # This replaces the empty folder at once: the preflight looks for it meanwhile.
    mv --no-target-directory -- "${folder}.partial" "${folder}" || return 1
    printf '%s\n' "${KIT_TREE}" >"${KIT_RUN_DIR}/state/tree"
}

# workspace::copy FOLDER: copies the files, so that no two of them share an inode, as they may in the store, and all are writable.
workspace::copy() {
    local -r folder="$1"
    local found
    # Nobody else can enter the store's folder, as long as it is this user's. Before that is known, nothing in it is opened.
    found="$(find "${KIT_SNAPSHOT%/*/*}" -maxdepth 0 \( ! -uid "${EUID}" -o -perm /022 -o ! -type d \) -printf '%p, of %u, mode %m')"
    [[ -z "${found}" ]] || { log::error "the workspace is where others may have put files: ${found}; submit again"; return 1; }
    found="$(sha256sum <"${KIT_SNAPSHOT}/listing")" || workspace::fail "cannot be read" || return 1
    [[ "${found%% *}" == "${KIT_TREE}" ]] || workspace::fail "has another listing than that of the submit" || return 1
    rm -rf -- "${folder}"
    cp --recursive --no-dereference --reflink=auto --preserve=mode,timestamps -- "${KIT_SNAPSHOT}/files" "${folder}" \
        || workspace::fail "cannot be copied to ${folder}" "$?" || return 1
    chmod --recursive u+w -- "${folder}"
    chmod 0700 -- "${folder}"
    workspace::differences "${folder}"
    ((${#workspace_differ[@]} == 0)) || workspace::fail "has other contents than at the submit: ${workspace_differ[*]:0:5}" || return 1
    # sha256sum finds what is missing or differs. With as many files and links as the listing has, there is nothing else.
    found="$(find "${folder}" ! -type d -printf '%y\n' | LC_ALL=C sort | uniq -c | tr -s ' \n' ' ')"
    [[ "${found% }" == "$(workspace::kinds_listed)" ]] || workspace::fail "has files that were not submitted, or lacks some" || return 1
}

# Prints how many files and links the listing has, as `uniq -c` would.
workspace::kinds_listed() {
    awk '/^# link /{ links++ } !/^#/{ files++ } END { printf "%s%s", files ? " " files " f" : "", links ? " " links " l" : "" }' \
        "${KIT_SNAPSHOT}/listing"
}

# Reports files that programs changed in the run's own copy. The next start continues with them.
workspace::say_changes() {
    workspace::differences "$1"
    ((${#workspace_differ[@]} == 0)) \
        || log::info "workspace: ${#workspace_differ[@]} of the submitted files were changed by the run, such as ${workspace_differ[0]}"
}

# workspace::differences FOLDER: sets workspace_differ to the files that differ from the submitted ones.
workspace::differences() {
    workspace_differ=()
    grep --quiet --invert-match '^#' -- "${KIT_SNAPSHOT}/listing" || return 0
    mapfile -t workspace_differ < <(cd -- "$1" && LC_ALL=C sha256sum --check --quiet -- "${KIT_SNAPSHOT}/listing" 2>/dev/null)
}

# workspace::fail PROBLEM [CODE]: of a command that returned this code. One that a signal ended says nothing of the snapshot.
workspace::fail() {
    if ((${2:-1} > 128)); then
        log::error "a signal ended the copy of the workspace; the next start makes it anew"
        return 1
    fi
    # The next submit of the same files checks each of them, and replaces those that changed.
    : 2>/dev/null >"${KIT_SNAPSHOT}/damaged" || true
    log::error "the workspace in ${KIT_SNAPSHOT} $1; submit the job again"
    return 1
}
