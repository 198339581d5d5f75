# shellcheck shell=bash
# Log lines: ISO 8601 time, host, message; on stderr.

log::info() {
    printf '%(%Y-%m-%dT%H:%M:%S%z)T %s: %s\n' -1 "${SLURMD_NODENAME:-${HOSTNAME:-host}}" "$*" >&2
}

log::error() {
    log::info "error: $*"
}
