# shellcheck shell=bash
# Loops in the background that live as long as this script: each reads a pipe that only this script holds open. When the script ends,
# even by kill -9, the pipe closes and the loop ends.

# Name -> number of each pipe that no other process may hold.
declare -A loops_pipes=()

# loops::start NAME COMMAND…: starts the command, which reads the pipe by loops::pause. Signals to the job do not end it.
loops::start() {
    local -r name="$1"
    local fd
    shift
    exec {fd}> >(loops::close && trap '' TERM USR1 USR2 INT HUP && "$@")
    loops_pipes["${name}"]="${fd}"
}

# loops::hold NAME FD: another pipe of this script's own.
loops::hold() {
    loops_pipes["$1"]="$2"
}

loops::stop() {
    local fd="${loops_pipes[$1]:-}"
    [[ -n "${fd}" ]] || return 0
    exec {fd}>&-
    unset "loops_pipes[$1]"
}

# Called in a child: it holds none of the pipes.
loops::close() {
    local fd
    for fd in "${loops_pipes[@]}"; do
        exec {fd}>&-
    done
}

# loops::pause SECONDS: waits. Returns 1 when the script has ended, or has stopped the loop.
loops::pause() {
    local -i status
    IFS= read -r -t "$1" _
    status=$?
    # read: a status above 128 is a time-out; any other failure is the end of the pipe.
    ((status > 128))
}
