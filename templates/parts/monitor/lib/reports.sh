# shellcheck shell=bash
# The folder of this node in which ranks report (kit_rank.py). lib/rank_progress.sh makes it, reads it, and removes it.

# Marks this rank's report as ended, so that the rank does not count as stalled.
reports::end() {
    # shellcheck disable=SC2153 # RANK comes from torchrun or worker.sh
    local -r file="/dev/shm/kit-${EUID}-${SLURM_JOB_ID:-}/${KIT_ROLE:-}@${RANK}"
    local step rest more
    # Another user may have made the folder, or a link in its place.
    [[ -O "${file%/*}" && ! -L "${file%/*}" && -f "${file}" && -O "${file}" && ! -L "${file}" ]] || return 0
    { read -r step _ rest && IFS= read -r more; } 2>/dev/null <"${file}" || return 0
    # The second line is for `kit time`.
    printf '%-127s\n%s\n' "${step} end ${rest}" "${more}" >"${file}"
}

# Removes the folder if nobody holds its lock: then its collector was killed, as when Slurm ends the monitor with a lost node.
reports::remove_unused() {
    local -r folder="/dev/shm/kit-${EUID}-${SLURM_JOB_ID:-}"
    local fd
    [[ -O "${folder}" && ! -L "${folder}" ]] && command -v flock >/dev/null || return 0
    { exec {fd}<"${folder}"; } 2>/dev/null || return 0
    ! flock --nonblock "${fd}" || rm -rf -- "${folder}"
    exec {fd}<&-
}
