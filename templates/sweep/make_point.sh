#!/bin/bash
# Makes the run folder of a sweep's point and prints its path. The point's task runs this when it starts; `kit` runs it when
# somebody asks for a point that has not started.
#
#   make_point.sh ARRAY TASK JOB
#
# ARRAY: the array's folder, SWEEP/arrays/NUMBER. TASK: the point's task. JOB: the array's job number.
#
#   ARRAY/points             a line for each task: the point's number, its template ('-': kit sweep made the folder), its words
#   SWEEP/templates/N/run    a run folder with tokens in place of what differs between points
#   SWEEP/templates/N/tokens the tokens: point number, job, task, array number, then one for each word of a point
#   SWEEP/templates/N/files  the files that contain tokens
#
# The folder gets its name when it is complete: a point has its whole run folder, or none. If two processes make it at the same
# time, the first one's folder counts, and both are equal.
set -o errexit -o nounset -o pipefail

# Minutes after which the folder of a killed process is removed.
readonly leftover_min=10

main() {
    umask g-w,o-w
    local -r array="$1" task="$2" job="$3"
    local -r sweep="${array%/*/*}"
    local -a words
    read -r -a words < <(sed --quiet "$((task + 1)){p;q}" -- "${array}/points")
    if ((${#words[@]} < 2)); then
        printf '%s: it has no task %s\n' "${array}/points" "${task}" >&2
        return 1
    fi
    local -r name="${sweep##*/}.${words[0]}"
    local -r point="${sweep}/points/${name}"
    if [[ ! -d "${point}" ]]; then
        make "${sweep}/templates/${words[1]}" "${words[0]}" "${job}" "${task}" "${array##*/}" "${words[@]:2}"
    fi
    link_log "${array}/logs/${task}.log" "${point}/logs/batch.log"
    printf '%s\n' "${point}"
}

# require_own PATH...: as in array.sh, nothing is made of what others could have changed.
require_own() {
    local others
    others="$(find "$@" -maxdepth 0 \( ! -uid "${EUID}" -o -perm /022 -o -type l \) -printf '%p (of %u, mode %m) ' 2>&1)"
    [[ -n "${others}" ]] || return 0
    printf 'nothing is made of what others can change: %s\n' "${others}" >&2
    return 72
}

# make TEMPLATE WORD...: the words are in the order of the template's tokens.
make() {
    local -r template="$1"
    shift
    local -a tokens files
    mapfile -t tokens <"${template}/tokens"
    mapfile -t files <"${template}/files"
    if ((${#tokens[@]} != $#)); then
        printf '%s: %d tokens for %d words\n' "${template}" "${#tokens[@]}" "$#" >&2
        return 1
    fi
    require_own "${template}/.." "${template}"{,/run,/tokens,/files} "${sweep}/points" || return
    local token program=""
    local -r plain='^[A-Za-z0-9.+_"-]+$'
    for token in "${tokens[@]}"; do
        # kit sweep writes nothing else. A slash or a line's end would begin a flag or a command of sed, which may run programs.
        if [[ ! "${token}" =~ ${plain} || ! "$1" =~ ${plain} ]]; then
            printf '%s: a token or a word has other characters than A-Z a-z 0-9 . + _ " -: %q %q\n' "${template}" "${token}" "$1" >&2
            return 1
        fi
        program+="s/${token}/$1/g;"
        shift
    done
    # A folder of the task's own: hundreds of tasks start at once, and a folder that they share changes while one of them reads it.
    local -r own="${array}/.making/${task}"
    mkdir --parents -- "${own}"
    find "${own}" -mindepth 1 -maxdepth 1 -mmin "+${leftover_min}" -exec rm -rf -- {} + || :
    partial="$(mktemp --directory -- "${own}/XXXXXX")"
    trap 'rm -rf -- "${partial}"' EXIT
    # Links where the file system has them. sed replaces the files that differ, so the template keeps its own.
    cp --archive --link -- "${template}/run" "${partial}/run" 2>/dev/null \
        || { rm -rf -- "${partial}/run" && cp --archive -- "${template}/run" "${partial}/run"; }
    # Byte by byte, whatever the locale: a value may be in any encoding.
    (cd -- "${partial}/run" && LC_ALL=C sed --in-place --expression="${program}" -- "${files[@]}")
    if [[ -e "${sweep}/cancelled/${name}" ]]; then
        cp --preserve=timestamps -- "${sweep}/cancelled/${name}" "${partial}/run/state/cancelled"
        cp -- "${sweep}/cancelled/${name}" "${partial}/run/state/cancelled-by"
    fi
    mv --no-target-directory -- "${partial}/run" "${point}" 2>/dev/null || [[ -d "${point}" ]]
}

# link_log LOG NAME: Slurm opens the output file before the run folder exists.
link_log() {
    local -r log="$1" link="$2"
    [[ -f "${log}" ]] || return 0
    [[ "${log}" -ef "${link}" ]] || ln --force -- "${log}" "${link}" 2>/dev/null || ln --symbolic --force -- "${log}" "${link}"
}

main "$@"
