# shellcheck shell=bash
# Keeps the FUSE daemon of a container alive as long as the container. Enroot's own helper ends the daemon by process group when CONT
# reaches it, and Slurm sends CONT and TERM to every process of a step: ranks that save would lose their files. So the daemon ignores
# signals in a session of its own, and a watcher ends it once no process is left in the container's mount namespace.

# fuse_daemon::detach PROGRAM WORD…: starts the program again in a session of its own, with signals ignored and with the mark by which
# watchers recognise daemons and each other. The process keeps its number: Enroot checks it until the image is mounted.
fuse_daemon::detach() {
    [[ -z "${KIT_FUSE_DAEMON:-}" ]] || return 0
    trap '' HUP INT QUIT TERM USR1 USR2 ALRM CONT TSTP
    KIT_FUSE_DAEMON=1 exec setsid --wait "$@"
}

# fuse_daemon::run WORD…: runs a daemon until it ends by itself or with the container, and returns its exit code. Once Enroot has
# switched to the container's root, the node's programs are out of reach: from then on this calls only builtins.
fuse_daemon::run() {
    local -a tied=()
    local -i daemon empty=0 rounds=0
    local never witness=""
    # util-linux has had this option since 2.33. Without it, a watcher that is killed leaves the daemon to Slurm.
    ! setpriv --pdeathsig KILL true 2>/dev/null || tied=(setpriv --pdeathsig KILL)
    # A pipe to which nobody writes: reading from it sleeps without a process.
    exec {never}<> <(:)
    "${tied[@]}" "$@" {never}<&- &
    daemon=$!
    exec &>/dev/null
    while kill -0 "${daemon}"; do
        if fuse_daemon::is_witness "${witness}" || fuse_daemon::find_witness; then
            empty=0
        elif ((++empty == 2)); then
            # Found nothing twice: a process that forks while /proc is read may be missed once.
            kill -KILL "${daemon}"
        fi
        # The mount fails early, if at all, and Enroot waits for that.
        read -rt "$((rounds++ < 50 || empty ? 0 : 1)).1" -u "${never}" || true
    done
    wait "${daemon}"
}

# fuse_daemon::is_inside PID: whether a process is in this process's mount namespace, which is the container's. Zombies are in none.
fuse_daemon::is_inside() {
    [[ -n "$1" && "/proc/$1/ns/mnt" -ef /proc/self/ns/mnt ]]
}

# Whether a process is of the container, and neither a daemon nor a watcher. Each look reads the mark again: while a daemon is started,
# its environment is empty for a moment, and it would be its own witness for ever.
fuse_daemon::is_witness() {
    fuse_daemon::is_inside "$1" && ! fuse_daemon::is_marked "$1"
}

# Sets witness to such a process. Returns 1 if there is none.
fuse_daemon::find_witness() {
    for witness in /proc/[0-9]*; do
        witness="${witness#/proc/}"
        ! fuse_daemon::is_witness "${witness}" || return 0
    done
    witness=""
    return 1
}

fuse_daemon::is_marked() {
    local pair
    while IFS= read -r -d '' pair; do
        [[ "${pair}" != KIT_FUSE_DAEMON=1 ]] || return 0
    done <"/proc/$1/environ"
    return 1
}
