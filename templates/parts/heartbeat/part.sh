# shellcheck shell=bash
# Writes a time stamp into the batch log periodically (`monitor.heartbeat`).

heartbeat::before_ranks() {
    loops::start heartbeat heartbeat::loop "${KIT_HEARTBEAT}"
}

heartbeat::stopped() {
    loops::stop heartbeat
}

heartbeat::loop() {
    while loops::pause "$1"; do
        log::info "still running"
    done
}
