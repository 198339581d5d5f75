#!/bin/bash
# read-ahead.sh IMAGE: reads the hot pages of an image into the page cache, before programs ask for them one by one. hot_pages.py has
# learnt them at an earlier start, and a list of another user is not used. Nothing waits for this program.
# shellcheck source-path=SCRIPTDIR/..
set -uo pipefail

readonly KIT_RUN_DIR="${BASH_SOURCE[0]%/bin/*}"
source "${KIT_RUN_DIR}/lib/clock.sh"
source "${KIT_RUN_DIR}/lib/hot_pages.sh"

# Reads at once. A file server answers several clients' reads faster than one's.
readonly read_ahead_streams=4

# Whether the node has the hot part already. For a file of another user, the kernel calls every page cached.
is_warm() {
    local cached
    [[ -O "$1" ]] || return 1
    cached="$(fincore --bytes --noheadings --output RES -- "$1" 2>/dev/null)" || return 1
    ((cached >= $2))
}

main() {
    local -r image="$1"
    local -i total=0 running=0
    local offset length
    local -a offsets=() lengths=()
    hot_pages::find "${KIT_RUN_DIR%/*}" "${image}" || return 0
    while read -r offset length _; do
        [[ "${offset}" =~ ^[0-9]{1,15}$ && "${length}" =~ ^[0-9]{1,15}$ ]] || continue
        offsets+=("${offset}")
        lengths+=("${length}")
        total+="${length}"
    done <"${hot_pages_list}"
    ! is_warm "${image}" "${total}" || return 0
    local -i i
    for ((i = 0; i < ${#offsets[@]}; i++)); do
        dd if="${image}" of=/dev/null bs=1M iflag=skip_bytes,count_bytes skip="${offsets[i]}" count="${lengths[i]}" status=none &
        ((++running % read_ahead_streams)) || wait
    done
    wait
}

main "$@"
