#!/usr/bin/env bash
# Starts a Docker Engine if none answers, or stops the one that this script started.
#
#   scripts/engine.sh up|down|status
#
# Where systemd runs, this uses the distribution's own unit. Elsewhere (containers, minimal machines) it starts dockerd in the
# background, without a bridge and without changing iptables, because the kit's builds have no network anyway.
set -euo pipefail

readonly SOCKET=/run/docker.sock
readonly PIDFILE=/run/slurm-kit-engine.pid
readonly LOG=/var/log/slurm-kit-engine.log
readonly WAIT_S=60

say() { printf 'engine: %s\n' "$*" >&2; }

die() {
    say "$1"
    say "what to do: $2"
    exit 1
}

# Runs this script again as root. `status` needs no root.
become_root() {
    [[ ${EUID} -eq 0 ]] && return
    command -v sudo >/dev/null ||
        die "starting an engine needs root, and there is no sudo" "ask an administrator to start Docker and to add you to the group 'docker'"
    say "root is needed: asking sudo"
    exec sudo -- "${BASH_SOURCE[0]}" "$@"
}

# Asks the socket itself, because the kit needs no docker command.
answers() {
    curl --silent --fail --max-time 5 --output /dev/null --unix-socket "${SOCKET}" http://engine/_ping
}

# Prints the pid in PIDFILE if it is still a dockerd. The number may have been given to another process since.
started_pid() {
    local pid
    pid=$(cat "${PIDFILE}" 2>/dev/null) || return 1
    [[ $(cat "/proc/${pid}/comm" 2>/dev/null) == dockerd ]] && printf '%s\n' "${pid}"
}

wait_for() {
    local -r deadline=$((SECONDS + WAIT_S))
    until "$@"; do
        ((SECONDS < deadline)) || return 1
        sleep 0.2
    done
}

start_daemon() {
    local dockerd
    dockerd=$(PATH="${PATH}:/usr/sbin:/sbin" command -v dockerd) ||
        die "no dockerd on this machine" "apt-get install docker.io (make setup does it), or point DOCKER_HOST at an engine"
    # After a stop without warning, such as a restored snapshot of a machine, the number may be another process's: dockerd would not start.
    started_pid >/dev/null || rm -f "${PIDFILE}"
    say "no systemd here: starting ${dockerd} --bridge=none --iptables=false in the background; log: ${LOG}"
    setsid --fork "${dockerd}" --bridge=none --iptables=false --ip6tables=false --pidfile="${PIDFILE}" >>"${LOG}" 2>&1 </dev/null
}

up() {
    command -v curl >/dev/null || die "curl is missing, and the engine's socket is asked with it" "apt-get install curl"
    if answers; then
        say "a Docker Engine answers already; nothing to do"
        return
    fi
    become_root up
    if answers; then
        say "a Docker Engine answers, to root only"
        say "what to do: add yourself to the group 'docker' and log in again"
        return
    fi
    if [[ -d /run/systemd/system ]]; then
        say "starting the unit 'docker' with systemctl"
        systemctl start docker || die "systemd could not start Docker" "journalctl -u docker"
    else
        start_daemon
    fi
    if ! wait_for answers; then
        tail -n 5 "${LOG}" >&2 2>/dev/null || true
        die "the engine did not answer within ${WAIT_S} s" "read ${LOG}; in a container, dockerd needs --privileged"
    fi
    say "a Docker Engine answers now"
}

is_gone() { [[ ! -d /proc/$1 ]]; }

down() {
    local pid
    if ! pid=$(started_pid); then
        say "no engine of ours runs; one that somebody else started is left alone"
        return
    fi
    become_root down
    say "stopping dockerd (pid ${pid})"
    kill -TERM "${pid}"
    wait_for is_gone "${pid}" || die "dockerd ${pid} did not end within ${WAIT_S} s" "read ${LOG}"
    rm -f "${PIDFILE}"
}

status() {
    answers || die "no Docker Engine answers at ${SOCKET}" "scripts/engine.sh up"
    say "a Docker Engine answers"
}

case "${1:-}" in
    up | down | status) "$1" ;;
    *)
        printf 'usage: %s up|down|status\n' "$0" >&2
        exit 2
        ;;
esac
