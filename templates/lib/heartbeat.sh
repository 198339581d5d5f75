# shellcheck shell=bash
# A time stamp in the batch log every so often. The loop reads a pipe that only this script holds open: when the script ends,
# kill -9 included, the pipe closes and the loop ends with it.

heartbeat::start() {
    local -ri seconds="$1"
    heartbeat_fd=""
    if ((seconds)); then
        exec {heartbeat_fd}> >(heartbeat::loop "${seconds}")
    fi
}

heartbeat::stop() {
    if [[ -n "${heartbeat_fd:-}" ]]; then
        exec {heartbeat_fd}>&-
        heartbeat_fd=""
    fi
}

heartbeat::loop() {
    trap '' TERM USR1 INT HUP
    local -i status
    while true; do
        IFS= read -r -t "$1" _
        status=$?
        # read: above 128 is a time-out; anything else is the end of the pipe.
        ((status > 128)) || return 0
        log::info "still running"
    done
}
