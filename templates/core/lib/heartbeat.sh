# shellcheck shell=bash
# Writes a time stamp into the batch log periodically. The loop reads a pipe that only this script holds open. When the script ends,
# even by kill -9, the pipe closes and the loop ends.

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
        # read: a status above 128 is a time-out; any other failure is the end of the pipe.
        ((status > 128)) || return 0
        log::info "still running"
    done
}
