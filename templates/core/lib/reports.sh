# shellcheck shell=bash
# The folder of this node in which ranks report (kit_rank.py). lib/rank_progress.sh makes it, reads it, and removes it.

# Removes the folder if nobody holds its lock: then its collector was killed, as when Slurm ends the monitor with a lost node.
reports::remove_unused() {
    local -r folder="/dev/shm/kit-${EUID}-${SLURM_JOB_ID:-}"
    local fd
    [[ -O "${folder}" && ! -L "${folder}" ]] && command -v flock >/dev/null || return 0
    { exec {fd}<"${folder}"; } 2>/dev/null || return 0
    ! flock --nonblock "${fd}" || rm -rf -- "${folder}"
    exec {fd}<&-
}
