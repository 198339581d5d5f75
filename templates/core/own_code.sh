# shellcheck shell=bash
# Slurm keeps its own copy of this script. What the script runs lies in a folder that may wait for days where others can write. So
# the folder, and the files and folders "$@" in it, must be this user's, and these have the digest that was written here at submit.
# What lies beside them (worker.sh, program.sh, setup.sh) only this user can have changed since.
require_own_code() {
    local others found
    cd -- "${KIT_RUN_DIR}" || exit 72
    others="$(find . state "$@" -maxdepth 0 \( ! -uid "${EUID}" -o -perm /022 -o -type l \) -printf "${KIT_RUN_DIR}/%p (of %u, mode %m) ")"
    found="$(find "$@" -name __pycache__ -prune -o -type f -print0 | LC_ALL=C sort --zero-terminated \
        | xargs --null sha256sum -- | sha256sum)"
    cd -- "${OLDPWD}" 2>/dev/null || cd /
    [[ -n "${others}" || "${found%% *}" != "${KIT_CODE}" ]] || return 0
    printf 'the run folder is not what was submitted, and nothing of it is run: %s\n  try: kit rerun %s\n' \
        "${others:-files of ${KIT_RUN_DIR} have changed}" "${KIT_RUN_DIR##*/}" >&2
    exit 72
}
