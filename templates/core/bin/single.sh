#!/bin/bash
{% for line in phases %}
# {{ line }}
{% endfor %}
{% for option in sbatch %}
#SBATCH {{ option }}
{% endfor %}
{% for line in explained %}
# {{ line }}
{% endfor %}

readonly KIT_MARK={{ mark | sh }}
readonly KIT_RUN_DIR={{ run_dir | sh }}
readonly -a KIT_FOLDERS={{ folders | sh }}

set -euo pipefail

main() {
    if [[ -z "${SLURM_JOB_ID:-}" ]]; then
        printf 'This file runs under sbatch: sbatch %q\n' "$0" >&2
        exit 2
    fi
    local -r run_dir="${KIT_RUN_DIR//"${KIT_MARK}"/${SLURM_JOB_ID}}"
    # A job that was queued again continues in its existing folder.
    if [[ ! -e "${run_dir}" ]]; then
        partial="${run_dir%/*}/.unpack-${SLURM_JOB_ID}"
        trap 'rm -rf -- "${partial}"' EXIT
        rm -rf -- "${partial}"
        mkdir -p -- "${partial}"
        unpack_all
        mkdir -p -- "${KIT_FOLDERS[@]/#/"${partial}/"}"
        mv --no-target-directory -- "${partial}" "${run_dir}"
        trap - EXIT
    fi
    exec "${run_dir}/batch.sh"
}

# unpack MODE NAME: writes a file of the run folder from stdin. An empty file comes as an empty line.
unpack() {
    local -r mode="$1" path="${partial}/$2"
    local text
    IFS= read -r -d '' text || true
    mkdir -p -- "${path%/*}"
    [[ "${text}" != $'\n' ]] || text=""
    printf '%s' "${text//"${KIT_MARK}"/${SLURM_JOB_ID}}" >"${path}"
    chmod -- "${mode}" "${path}"
}

# Each job of this file has its own run folder. The job's number replaces the mark in the folder's name and in these files.
unpack_all() {
{% for file in files %}
    unpack {{ file.mode | sh }} {{ file.name | sh }} <<'{{ end }}'
{{ file.text }}
{{ end }}
{% endfor %}
}

# Below this line nothing is generated.
main "$@"
