#!/usr/bin/env bash
# Start a Docker Engine where none answers, or stop the one that this script started.
#
#   scripts/engine.sh up|down|status
#
# Where systemd runs, the distribution's own unit is used. Elsewhere (containers, minimal machines) dockerd is started in the
# background without a bridge and without touching iptables: the kit's builds have no network anyway.
# State: /run/slurm-kit-engine.pid; log: /var/log/slurm-kit-engine.log.
set -euo pipefail

readonly PIDFILE=/run/slurm-kit-engine.pid
readonly LOG=/var/log/slurm-kit-engine.log
readonly WAIT_S=60

say() { printf 'engine: %s\n' "$*" >&2; }

die() {
    say "$1"
    say "what to do: $2"
    exit 1
}

as_root() {
    if [[ ${EUID} -eq 0 ]]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo -n "$@"
    else
        die "starting an engine needs root, and there is no sudo" "ask an administrator to start Docker and to add you to the group 'docker'"
    fi
}

# The socket itself is asked, not a client program: the kit needs no docker command.
answers() {
    as_root test -S /run/docker.sock && as_root curl --silent --fail --max-time 5 --unix-socket /run/docker.sock http://engine/_ping >/dev/null 2>&1
}

# The pid in PIDFILE, when it is still a dockerd (the number may have been given to another process since).
started_pid() {
    local pid
    pid=$(cat "${PIDFILE}" 2>/dev/null) || return 1
    [[ $(cat "/proc/${pid}/comm" 2>/dev/null) == dockerd ]] && printf '%s\n' "${pid}"
}

wait_for_answer() {
    local -r deadline=$((SECONDS + WAIT_S))
    until answers; do
        if ((SECONDS >= deadline)); then
            return 1
        fi
        sleep 0.2
    done
}

up() {
    if answers; then
        say "a Docker Engine answers already; nothing to do"
        return
    fi
    command -v curl >/dev/null || die "curl is missing, and the engine's socket is asked with it" "apt-get install curl"
    local dockerd
    dockerd=$(PATH="${PATH}:/usr/sbin:/sbin" command -v dockerd) ||
        die "no dockerd on this machine" "apt-get install docker.io (make setup does it), or point DOCKER_HOST at an engine"
    if [[ -d /run/systemd/system ]]; then
        say "starting the unit 'docker' with systemctl"
        as_root systemctl start docker || die "systemd could not start Docker" "journalctl -u docker"
    else
        say "no systemd here: starting ${dockerd} --bridge=none --iptables=false in the background; log: ${LOG}"
        # setsid: the engine outlives this script and its terminal.
        # shellcheck disable=SC2016 # expanded by the inner shell, as root
        as_root env DOCKERD="${dockerd}" PIDFILE="${PIDFILE}" LOG="${LOG}" bash -c '
            setsid "${DOCKERD}" --bridge=none --iptables=false --ip6tables=false >>"${LOG}" 2>&1 </dev/null &
            printf "%s\n" "$!" >"${PIDFILE}"'
    fi
    wait_for_answer || {
        as_root tail -n 5 "${LOG}" >&2 2>/dev/null || true
        die "the engine did not answer within ${WAIT_S} s" "read ${LOG}; in a container, dockerd needs --privileged"
    }
    say "a Docker Engine answers now"
}

down() {
    local pid
    if ! pid=$(started_pid); then
        say "no engine of ours runs; one that somebody else started is left alone"
        return
    fi
    say "stopping dockerd (pid ${pid})"
    as_root kill -TERM "${pid}"
    local -r deadline=$((SECONDS + WAIT_S))
    while [[ -d /proc/${pid} ]]; do
        if ((SECONDS >= deadline)); then
            die "dockerd ${pid} did not end within ${WAIT_S} s" "read ${LOG}"
        fi
        sleep 0.2
    done
    as_root rm -f "${PIDFILE}"
}

status() {
    if answers; then
        say "a Docker Engine answers"
    else
        say "no Docker Engine answers at /run/docker.sock"
        return 1
    fi
}

case "${1:-}" in
    up | down | status) "$1" ;;
    *)
        printf 'usage: %s up|down|status\n' "$0" >&2
        exit 2
        ;;
esac
