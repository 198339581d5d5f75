# shellcheck shell=bash
# Commands that a site gives its users as functions of the shell: module and ml, conda, mamba, micromamba, spack. A login shell
# defines them, and a step of Slurm starts none. So each is defined here at its first use in a set-up line, by what the node has.
# A function that the submitter's shell exported, or that a task prolog defines, is already there, and stays.

# The first of these that is there; for where no file of profile.d says more.
readonly site_shell_modules=(/usr/share/lmod/lmod/init/bash /opt/apps/lmod/lmod/init/bash /usr/share/modules/init/bash
    /usr/share/Modules/init/bash)
readonly site_shell_profile=/etc/profile.d

# Called where lines are about to run. The functions are not exported: the program does not see them.
site_shell::offer() {
    local name
    for name in module ml conda mamba micromamba spack; do
        declare -F "${name}" >/dev/null || eval "${name}() { site_shell::use ${name} \"\$@\"; }"
    done
}

# site_shell::use NAME WORD…: defines a command, and calls it. Its own variables have long names, because a site's files run here.
site_shell::use() {
    local -r site_shell_name="$1" site_shell_options="$-"
    shift
    # A site's files read variables that may be unset, and have commands that fail.
    set +eu
    site_shell::define "${site_shell_name}"
    [[ "${site_shell_options}" != *u* ]] || set -u
    if declare -F "${site_shell_name}" >/dev/null; then
        "${site_shell_name}" "$@"
    elif type -P "${site_shell_name}" >/dev/null; then
        command "${site_shell_name}" "$@"
    else
        log::error "\`${site_shell_name}\` is not here: no function of the submitter's shell or of a task prolog, and nothing that defines it in ${site_shell_profile}, KIT_BASH_ENV or its usual places"
        return 127
    fi
}

site_shell::define() {
    local site_shell_file
    case "$1" in
        module | ml)
            unset -f module ml
            site_shell::read 'lmod|modul' module && return 0
            for site_shell_file in "${LMOD_PKG:+${LMOD_PKG}/init/bash}" "${MODULESHOME:+${MODULESHOME}/init/bash}" "${site_shell_modules[@]}"; do
                [[ -r "${site_shell_file}" ]] || continue
                # shellcheck source=/dev/null
                source "${site_shell_file}" >/dev/null
                ! declare -F module >/dev/null || return 0
            done
            ;;
        spack)
            unset -f spack
            site_shell::read spack spack && return 0
            site_shell_file="$(type -P spack)"
            for site_shell_file in "${SPACK_ROOT:-}" "${site_shell_file%/bin/spack}" "${HOME:-}/spack" /opt/spack; do
                [[ "${site_shell_file}" == /* && -r "${site_shell_file}/share/spack/setup-env.sh" ]] || continue
                # shellcheck source=/dev/null
                source "${site_shell_file}/share/spack/setup-env.sh"
                return 0
            done
            ;;
        micromamba)
            unset -f micromamba
            site_shell::read mamba micromamba && return 0
            site_shell_file="$(type -P micromamba)"
            [[ "${MAMBA_EXE:-}" != */micromamba ]] || site_shell_file="${MAMBA_EXE}"
            [[ ! -x "${site_shell_file}" ]] || eval "$("${site_shell_file}" shell hook --shell bash)"
            ;;
        *)
            unset -f conda mamba
            site_shell::read 'conda|mamba' "$1" && return 0
            site_shell::define_conda "$1"
            ;;
    esac
}

# site_shell::define_conda conda|mamba: by the installation of the submitter's shell, or the first that is found.
site_shell::define_conda() {
    local site_shell_base
    for site_shell_base in "${CONDA_EXE:-}" "${MAMBA_EXE:-}" "$(type -P conda)" "$(type -P mamba)" \
        "${HOME:-}"/{miniforge3,miniconda3,mambaforge,anaconda3}/bin/conda /opt/conda/bin/conda; do
        [[ "${site_shell_base}" == */*/* && -x "${site_shell_base}" ]] || continue
        site_shell_base="${site_shell_base%/*/*}"
        if [[ -x "${site_shell_base}/bin/conda" ]]; then
            eval "$("${site_shell_base}/bin/conda" shell.bash hook)"
        fi
        if [[ "$1" == mamba && -r "${site_shell_base}/etc/profile.d/mamba.sh" ]]; then
            # shellcheck source=/dev/null
            source "${site_shell_base}/etc/profile.d/mamba.sh"
        fi
        ! declare -F "$1" >/dev/null || return 0
    done
}

# site_shell::read PATTERN NAME: reads the files of the node's profile that name the command, or are named by it, in order and all, as a login shell
# does: one may find the modules, and the next choose some. Then the file that the submitter's BASH_ENV named. Whether NAME is there.
site_shell::read() {
    local site_shell_file
    for site_shell_file in "${site_shell_profile}"/*.sh; do
        [[ -r "${site_shell_file}" ]] || continue
        { printf '%s\n' "${site_shell_file##*/}"; cat -- "${site_shell_file}"; } | grep -iE -- "$1" >/dev/null || continue
        # shellcheck source=/dev/null
        source "${site_shell_file}" >/dev/null
    done
    if ! declare -F "$2" >/dev/null && [[ "${KIT_BASH_ENV:-}" == /* && -r "${KIT_BASH_ENV}" ]]; then
        # shellcheck source=/dev/null
        source "${KIT_BASH_ENV}" >/dev/null
    fi
    declare -F "$2" >/dev/null
}

site_shell::offer
