# shellcheck shell=bash
# Decides which files of a node may be used: folders that nobody else can write or exchange, and files whose digest was computed
# here.

# The reason of the last refusal of trust::private_folder.
trust_problem=""

# trust::private_folder FOLDER: makes it with mode 0700, or accepts it if it is the user's own, is no link, and nobody else can
# write there. No folder above it may belong to another user either: who can rename a folder can put another one in its place.
trust::private_folder() {
    local -r folder="$1"
    local owner mode kind
    trust_problem=""
    trust::safe_way "$(dirname -- "${folder}")" || return $?
    [[ -L "${folder}" || -e "${folder}" ]] || (umask 077 && mkdir -p -- "${folder}") 2>/dev/null
    trust::safe_way "$(dirname -- "${folder}")" || return $?
    if ! read -r owner mode kind < <(stat --format='%u %a %F' -- "${folder}" 2>/dev/null); then
        trust_problem="${folder} cannot be made"
    elif [[ "${kind}" != directory ]]; then
        trust_problem="${folder} is a ${kind} of user $(trust::user "${owner}"), not a folder"
    elif ((owner != EUID)); then
        trust_problem="${folder} belongs to user $(trust::user "${owner}"), not to you: what lies in it is not used"
    elif ((8#${mode} & 8#0022)); then
        trust_problem="${folder} has mode ${mode}: others could have put files there; empty it, then 'chmod 0700' it"
    fi
    [[ -z "${trust_problem}" ]]
}

# trust::safe_way FOLDER: whether it, as far as it exists, and all folders above it belong to root or the user. Others must not be
# able to write there, except in folders like /tmp, where only the owner of a name may exchange it.
trust::safe_way() {
    local at owner mode
    local -a way=()
    at="$(realpath --canonicalize-missing -- "$1")"
    while [[ -n "${at}" ]]; do
        way+=("${at}")
        at="${at%/*}"
    done
    # One process for all folders: every node of a job comes here before its container starts.
    while IFS=' ' read -r -d '' owner mode at; do
        if ((owner != 0 && owner != EUID)); then
            trust_problem="${at} belongs to user $(trust::user "${owner}"), who could exchange what is below it"
            return 1
        elif (((8#${mode} & 8#0002) && !(8#${mode} & 8#1000))); then
            trust_problem="${at} may be written by everybody (mode ${mode}), and has no sticky bit"
            return 1
        fi
    done < <(stat --printf='%u %a %n\0' -- "${way[@]}" / 2>/dev/null)
}

trust::user() {
    local name
    name="$(getent passwd "$1" 2>/dev/null)"
    printf '%s' "${name%%:*}${name:+ (}$1${name:+)}"
}

# trust::digest FILE MEMORY: prints the sha256 of FILE. It is computed once for each device, inode, size and time, and stored in
# MEMORY, a file that only the user can write. If FILE changed within the last two seconds, it is not stored: it could change again
# unnoticed.
trust::digest() {
    local -r file="$1" memory="$2"
    local -r form='%d %i %s %.9Y %.9Z'
    local key known digest changed
    key="$(stat --dereference --format="${form}" -- "${file}")" || return $?
    if trust::is_own_file "${memory}"; then
        known="$(awk -v key="${key} " 'index($0, key) == 1 { known = substr($0, length(key) + 1) } END { print known }' "${memory}")"
        if [[ "${known}" =~ ^[0-9a-f]{64}$ ]]; then
            printf '%s\n' "${known}"
            return 0
        fi
    fi
    digest="$(sha256sum <"${file}")" || return $?
    digest="${digest%% *}"
    printf '%s\n' "${digest}"
    changed="${key##* }"
    [[ "$(stat --dereference --format="${form}" -- "${file}")" == "${key}" ]] || return 0
    ((EPOCHSECONDS - ${changed%%.*} > 2)) || return 0
    if [[ -e "${memory}" || -L "${memory}" ]] && ! trust::is_own_file "${memory}"; then
        return 0
    fi
    (umask 077 && printf '%s %s\n' "${key}" "${digest}" >>"${memory}") 2>/dev/null || true
}

# Whether it is a regular file of the user, no link, that nobody else may write.
trust::is_own_file() {
    local owner mode kind
    read -r owner mode kind < <(stat --format='%u %a %F' -- "$1" 2>/dev/null) || return $?
    [[ "${kind}" == regular* ]] && ((owner == EUID && !(8#${mode} & 8#0022)))
}
