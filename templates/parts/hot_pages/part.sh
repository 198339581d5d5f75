# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # names that other libraries set or read
# Hot pages: the parts of an image that the start of a program reads. The first run that has an image learns them, from what its
# node keeps in memory. They are kept beside the runs, in .hot-pages/DIGEST of the user's own, and later starts read them ahead.

# Seconds after the start of the ranks at which the pages are learnt, until a list is settled.
readonly -a hot_pages_at=(10 60 300)
# The longest that the learning may take.
readonly hot_pages_limit_s=120
hot_pages_list=""

# shellcheck source=/dev/null
source "${KIT_RUN_DIR}/lib/trust.sh"

# hot_pages::find RUNS-DIR IMAGE: sets hot_pages_list to the list of an image, which the store names by its digest. Returns 1 where
# there is none, or others could have written it.
hot_pages::find() {
    local digest="${2##*/}"
    digest="${digest%.sqsh}"
    hot_pages_list="$1/.hot-pages/${digest}"
    [[ "${digest}" =~ ^[0-9a-f]{64}$ && -O "$1/.hot-pages" && ! -L "$1/.hot-pages" ]] || return 1
    trust::is_own_file "${hot_pages_list}"
}

# Starts to learn in the background.
hot_pages::before_attempt() {
    loops::start hot_pages hot_pages::loop "${KIT_IMAGES[0]}"
}

hot_pages::after_attempt() {
    loops::stop hot_pages
}

# hot_pages::loop IMAGE
hot_pages::loop() {
    local -i at since=0
    for at in "${hot_pages_at[@]}"; do
        ! hot_pages::is_settled "$1" || return 0
        loops::pause $((at - since)) || return 0
        since="${at}"
        hot_pages::learn "$1" "${at}"
    done
}

# hot_pages::is_settled IMAGE: whether its list has stopped growing.
hot_pages::is_settled() {
    local first
    hot_pages::find "${KIT_RUN_DIR%/*}" "$1" && read -r first <"${hot_pages_list}" || return 1
    [[ "${first}" == '# settled' ]]
}

# hot_pages::learn IMAGE SECONDS
hot_pages::learn() {
    local -r folder="${KIT_RUN_DIR%/*}/.hot-pages"
    trust::private_folder "${folder}" && command -v python3 >/dev/null || return 0
    hot_pages::find "${KIT_RUN_DIR%/*}" "$1" || [[ ! -e "${hot_pages_list}" ]] || return 0
    timeout --signal=KILL "${hot_pages_limit_s}" nice -n 19 python3 -E -s -S -B "${KIT_RUN_DIR}/lib/hot_pages.py" \
        "$1" "${hot_pages_list}" "${SLURM_JOB_ID}" "$2" </dev/null >>"${KIT_RUN_DIR}/state/hot-pages.log" 2>&1
}
