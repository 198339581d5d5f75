# shellcheck shell=bash
# shellcheck disable=SC2154 # lib/failures.sh sets failures_killed_code
# Watches for a killed slurmstepd (killed by hand, or for memory). Its tasks continue, Slurm loses contact with them, srun waits for
# them forever, and nobody can end them. So each task watches its own slurmstepd. Once it is gone, the task records that its rank
# was killed, which ends the step like any failed rank, and kills its processes. The watch lives as long as the pipe that the task's
# own process holds open, as in heartbeat.sh.

# Seconds between checks, and before a second check. Each reads one file of /proc.
readonly orphans_look_s=5 orphans_again_s=0.5

# orphans::watch RANK: starts the watch of this task; `once` stands for the lines of [once]. Sets KIT_TASK_FD, the pipe's number, to
# which rank.sh writes a line when its program has ended, and KIT_SLURMSTEPD, by which a rank sees that its slurmstepd is gone.
orphans::watch() {
    if [[ -n "${KIT_TASK_FD:-}" ]]; then
        # bubblewrap.sh watches outside the container; it does not know which rank this is.
        { printf 'rank %s\n' "$1" >&"${KIT_TASK_FD}"; } 2>/dev/null || true
        return 0
    fi
    orphans::find_slurmstepd || return 0
    exec {KIT_TASK_FD}> >(orphans::loop "${KIT_SLURMSTEPD}" "$1")
    export KIT_SLURMSTEPD KIT_TASK_FD
}

# Tells the watch that the task has ended normally.
orphans::ended() {
    [[ -z "${KIT_TASK_FD:-}" ]] || { printf 'ended\n' >&"${KIT_TASK_FD}"; } 2>&- || true
}

# Finds the nearest slurmstepd above this shell, past the container runtime's processes. Returns 1 where none is visible: in a PID
# namespace, or where users do not see the processes of others (hidepid).
orphans::find_slurmstepd() {
    KIT_SLURMSTEPD=$$
    while orphans::read_parent "${KIT_SLURMSTEPD}" && ((orphans_parent > 1)); do
        KIT_SLURMSTEPD="${orphans_parent}"
        ! orphans::is_slurmstepd "${KIT_SLURMSTEPD}" || return 0
    done
    unset KIT_SLURMSTEPD
    return 1
}

# Reads field 4 of proc(5)'s stat, after a name that may hold anything. Returns 1 when the process is gone.
orphans::read_parent() {
    local line=""
    orphans_parent=0
    { IFS= read -r -d '' line <"/proc/$1/stat"; } 2>/dev/null || [[ -n "${line}" ]] || return 1
    read -r _ orphans_parent _ <<<"${line##*) }"
}

# orphans::has_lost SLURMSTEPD: whether it is gone, in two checks: a busy machine may fail one of them, for lack of memory or file
# numbers, and the answer ends the task.
orphans::has_lost() {
    ! orphans::is_slurmstepd "$1" || return 1
    sleep "${orphans_again_s}" 2>&-
    ! orphans::is_slurmstepd "$1"
}

# Whether it is a slurmstepd and lives. A dead one may stay until its parent reaps it. Here and below, messages are discarded by
# closing stderr: where the FUSE daemons of a container are gone, /dev/null cannot be opened, and bash would not read at all.
orphans::is_slurmstepd() {
    local line=""
    { read -r line <"/proc/$1/stat"; } 2>&-
    [[ "${line}" == *"(slurmstepd) "[!ZX]* ]]
}

# orphans::watch_container RUN-DIR: called outside a container with its own PID namespace. From inside no slurmstepd is visible, and
# all processes of the namespace die at once. The worker inside names its rank through the pipe.
orphans::watch_container() {
    [[ -n "${KIT_FAILURES:-}" && -n "${SLURM_PROCID:-}" ]] || return 0
    orphans::find_slurmstepd || return 0
    exec {KIT_TASK_FD}> >(KIT_RUN_DIR="$1" orphans::loop "${KIT_SLURMSTEPD}" "${SLURM_PROCID}")
    export KIT_TASK_FD
    # Inside the container this number belongs to another process.
    unset KIT_SLURMSTEPD
}

# orphans::end_without SLURMSTEPD: ends this script and its children once its slurmstepd is gone. Nobody else would end them.
orphans::end_without() {
    local path
    while kill -0 "$$" 2>/dev/null; do
        if orphans::has_lost "$1"; then
            for path in /proc/[0-9]*; do
                orphans::read_parent "${path#/proc/}" || continue
                [[ "${orphans_parent}" != "$$" || "${path#/proc/}" == "${BASHPID}" ]] || kill -TERM "${path#/proc/}" 2>/dev/null
            done
            kill -TERM "$$" 2>/dev/null
            return 0
        fi
        sleep "${orphans_look_s}"
    done
}

# orphans::loop SLURMSTEPD RANK
orphans::loop() {
    local -i status=0
    local line rank="$2"
    set +e
    trap '' TERM USR1 USR2 INT HUP
    while true; do
        line=""
        IFS= read -r -t "${orphans_look_s}" line
        status=$?
        if ((status == 0)); then
            [[ "${line}" == "rank "* ]] || return 0
            rank="${line#rank }"
        elif ((status <= 128)); then
            # The pipe ended without a line: torchrun has ended, or the task was killed, as bubblewrap does when its parent is gone.
            orphans::has_lost "$1" || { orphans::end_left; return 0; }
            orphans::collect
            [[ "${KIT_SHAPE:-srun}" == srun || -n "${orphans_rank_left}" ]] || return 0
            break
        fi
        ! orphans::has_lost "$1" || break
    done
    orphans::say "${rank}"
    failures::record "${rank}" "${failures_killed_code}" && failures::note_alone
    orphans::collect
    { kill -KILL "${orphans_pids[@]}"; } 2>&-
}

# Kills what is left of a rank whose shell was killed alone. Where Slurm finds processes by their parents, it has lost these.
orphans::end_left() {
    # Outside a container with a PID namespace the shape is not known, and nothing is left.
    [[ "${KIT_SHAPE:-}" == srun ]] || return 0
    orphans::collect
    ((${#orphans_pids[@]} == 0)) || { kill -KILL "${orphans_pids[@]}"; } 2>&-
}

orphans::say() {
    local runs="the ranks of a node" ends="rank $1 is ended" log="${KIT_RUN_DIR}/logs${KIT_ROLE:+/${KIT_ROLE}}/rank-$1.log"
    if [[ "$1" == once ]]; then
        runs="the lines of [once]" ends="they are ended" log="${KIT_RUN_DIR}/logs/once.log"
    fi
    log::error "slurmstepd, by which Slurm runs ${runs}, is gone: killed, or out of memory; ${ends}" 2>>"${log}"
}

# Sets orphans_pids to the processes of this task except this one, and orphans_rank_left if the shell of a rank is among them.
# Processes are recognised by their environment, which only their user can read. Uses only bash, because an image may lack grep.
orphans::collect() {
    local path all IFS=$'\n'
    local -a words
    orphans_pids=() orphans_rank_left=""
    for path in /proc/[0-9]*; do
        [[ "${path#/proc/}" != "${BASHPID}" ]] || continue
        { mapfile -d '' -t words <"${path}/environ"; } 2>&- || continue
        all=$'\n'"${words[*]}"$'\n'
        if [[ "${all}" == *$'\n'"SLURM_JOB_ID=${SLURM_JOB_ID}"$'\n'* && "${all}" == *$'\n'"SLURM_STEP_ID=${SLURM_STEP_ID}"$'\n'* \
            && "${all}" == *$'\n'"SLURM_PROCID=${SLURM_PROCID}"$'\n'* ]]; then
            orphans_pids+=("${path#/proc/}")
            { mapfile -d '' -t words <"${path}/cmdline"; } 2>&-
            [[ "${words[*]}" != */bin/rank.sh* ]] || orphans_rank_left=1
        fi
    done
}
