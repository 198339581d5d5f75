# shellcheck shell=bash
# Watches for two failures that no exit code reports in time: a rank that fails while a launcher waits for ranks that do not react,
# and a node that Slurm has given up while ranks on other nodes wait for it. The loop tells the batch script by USR2. It lives as
# long as the pipe that only this script holds open, as in heartbeat.sh.

# Seconds that the other ranks get once one has failed. srun's own --kill-on-bad-exit is faster where it sees the ranks.
readonly failure_watch_grace=10
# Seconds between looks at the nodes. A look asks the controller once, so a job asks twice a minute, for any number of roles and
# nodes.
declare -A failure_watch_known=()
readonly failure_watch_tick=2 failure_watch_nodes_every=30

failure_watch::start() {
    failure_watch_fd=""
    exec {failure_watch_fd}> >(failure_watch::loop "$$" "$(failures::folder '*')" "${KIT_OUTLIVES}")
}

failure_watch::stop() {
    if [[ -n "${failure_watch_fd:-}" ]]; then
        exec {failure_watch_fd}>&-
        failure_watch_fd=""
    fi
}

failure_watch::loop() {
    local -r batch="$1" folders="$2" outlives="$3"
    local -i status failed_at=0 looked_at=0
    trap '' TERM USR1 USR2 INT HUP
    [[ -z "${heartbeat_fd:-}" ]] || exec {heartbeat_fd}>&-
    while true; do
        IFS= read -r -t "${failure_watch_tick}" _
        status=$?
        # read: a status above 128 is a time-out; any other failure is the end of the pipe.
        ((status > 128)) || return 0
        if failures::listed "${folders}"; then
            ((failed_at)) || failed_at=EPOCHSECONDS
            ((EPOCHSECONDS - failed_at < failure_watch_grace)) || kill -USR2 "${batch}" 2>/dev/null
        else
            failed_at=0
        fi
        if ((outlives && EPOCHSECONDS - looked_at >= failure_watch_nodes_every)); then
            looked_at=EPOCHSECONDS
            failure_watch::look_at_nodes && kill -USR2 "${batch}" 2>/dev/null
        fi
    done
}

# Whether a node is lost now that was there at the last look.
failure_watch::look_at_nodes() {
    local name
    local -i found=1
    nodes::look || return 1
    while read -r name; do
        [[ -z "${failure_watch_known[${name}]:-}" ]] || continue
        failure_watch_known["${name}"]=1
        found=0
    done < <(nodes::lost "${nodes_all[@]}")
    return "${found}"
}
