# shellcheck shell=bash
# Runs the job's set-up lines (`setup` of the job and the cluster) one after the other in the caller's shell, so that the program
# gets what they export. The first line that fails stops them. `LINE || true` may fail.

# The code of a rank whose set-up failed: EX_CANTCREAT of BSD's sysexits, which programs do not return by convention.
# shellcheck disable=SC2034
readonly setup_lines_failed_code=73

# setup_lines::run FILE: returns 1 when a line failed, and sets setup_lines_said and setup_lines_code. A line may be the first of
# several, such as `if …; then`.
setup_lines::run() {
    local setup_lines_text="" setup_lines_next
    local -i setup_lines_number=0 setup_lines_first=1
    # In runs whose lines may use the site's commands, such as `module`. Once: a line may define one of them itself.
    if [[ -e "${KIT_RUN_DIR}/lib/site_shell.sh" ]] && ! declare -F site_shell::offer >/dev/null; then
        source "${KIT_RUN_DIR}/lib/site_shell.sh"
    fi
    while IFS= read -r -u 9 setup_lines_next || [[ -n "${setup_lines_next}" ]]; do
        setup_lines_number+=1
        setup_lines_text+="${setup_lines_text:+$'\n'}${setup_lines_next}"
        setup_lines::is_whole "${setup_lines_text}" || continue
        eval "${setup_lines_text}" 9<&-
        setup_lines_code=$?
        if ((setup_lines_code)); then
            setup_lines_said="line ${setup_lines_first} failed with exit code ${setup_lines_code}: ${setup_lines_text}"
            return 1
        fi
        setup_lines_text="" setup_lines_first=$((setup_lines_number + 1))
    done 9<"$1"
    [[ -z "${setup_lines_text}" ]] || {
        setup_lines_code=2 setup_lines_said="line ${setup_lines_first} is not complete: ${setup_lines_text}"
        return 1
    }
}

# Whether the text is complete: not in the middle of a compound command or a here document. For a here document, bash only warns.
setup_lines::is_whole() {
    local said
    [[ "$1" != *\\ ]] || return 1
    said="$(bash -n <<<"$1" 2>&1)" && [[ -z "${said}" ]]
}
