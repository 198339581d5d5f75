# shellcheck shell=sh
# The relay of a training over two clusters, on this login node. DO is one of: port: finds a Python that can run it, and the first port
# from FROM on, in the range FIRST to LAST, on which nobody listens; start: starts the relay of the run RUN, relative to RUNS, unless it
# runs already, and waits until it listens; token: prints the token of the run RUN, if it has not ended.
main() {
    kit_environment
    case $DO in
        port)
            section python 0 "$(interpreter)"
            section version 0 "$(python3 --version 2>&1)"
            section port 0 "$(free_port)"
            ;;
        start) start ;;
        token) section token 0 "$(sed -n 's/.*KIT_RELAY_TOKEN=\([0-9a-f]*\).*/\1/p' "$RUNS/$RUN/.secrets" 2>/dev/null)" ;;
    esac
    printf 'end\n'
}

# Prints the first Python that is new enough for relay.py.
interpreter() {
    for name in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python3.9 python3.8; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 8))' </dev/null >/dev/null 2>&1; then
            printf '%s\n' "$name"
            return
        fi
    done
}

# A port counts as taken if anybody listens on it, on any address. 0A is the state LISTEN: proc_pid_net(5).
free_port() {
    taken=$(cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | awk '$4 == "0A" { n = split($2, part, ":"); print part[n] }')
    candidate=$FROM
    left=$((LAST - FIRST + 1))
    while [ "$left" -gt 0 ]; do
        if ! printf '%s\n' "$taken" | grep -q -x "$(printf '%04X' "$candidate")"; then
            printf '%d\n' "$candidate"
            return
        fi
        left=$((left - 1))
        candidate=$((candidate + 1))
        [ "$candidate" -le "$LAST" ] || candidate=$FIRST
    done
}

start() {
    cd -- "$RUNS/$RUN" || { section relay 0 none; section said 0 ''; return; }
    if [ "$(kit_relay .)" != up ]; then
        # It must not hold the pipes of this session: sshd would wait for its end. HUP is ignored already.
        "$(interpreter)" code/relay.py "$RUNS/$RUN" --host "$NODES_USE" --port "$PORT" ${BIND:+--bind "$BIND"} \
            </dev/null >>logs/relay.log 2>&1 &
        tries=100
        while [ "$(kit_relay .)" != up ] && kill -0 "$!" 2>/dev/null && [ "$tries" -gt 0 ]; do
            tries=$((tries - 1))
            sleep 0.2
        done
    fi
    section relay 0 "$(kit_relay .)"
    section said 0 "$(tail -n 1 logs/relay.log)"
}
