# shellcheck shell=bash
# Watches for two failures that no exit code reports in time: a rank that fails while a launcher waits for ranks that do not react,
# and a node that Slurm has given up while ranks on other nodes wait for it. The loop tells the batch script by USR2.

# Seconds that the other ranks get once one has failed. srun's own --kill-on-bad-exit is faster where it sees the ranks.
readonly failure_watch_grace=10
# Seconds between looks at the ranks' records, and at the nodes. The nodes are looked at where the job outlives the loss of one (spares,
# replicas). A look asks the controller once, so a job asks twice a minute, for any number of roles and nodes.
readonly failure_watch_tick=2 failure_watch_nodes_every=30
declare -A failure_watch_known=()

failure_watch::start() {
    loops::start failure_watch failure_watch::loop "$$" "$(failures::folder '*')" "${KIT_OUTLIVES}"
}

failure_watch::stop() {
    loops::stop failure_watch
}

# failure_watch::loop BATCH FOLDERS OUTLIVES
failure_watch::loop() {
    local -i failed_at=0 looked_at=0
    while loops::pause "${failure_watch_tick}"; do
        if failures::listed "$2"; then
            ((failed_at)) || failed_at=EPOCHSECONDS
            ((EPOCHSECONDS - failed_at < failure_watch_grace)) || kill -USR2 "$1" 2>/dev/null
        else
            failed_at=0
        fi
        if (($3 && EPOCHSECONDS - looked_at >= failure_watch_nodes_every)); then
            looked_at=EPOCHSECONDS
            failure_watch::look_at_nodes && kill -USR2 "$1" 2>/dev/null
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
