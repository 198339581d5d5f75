# shellcheck shell=bash
# A slurmstepd that is killed (by hand, or for memory) leaves its tasks behind: they run on, Slurm hears no more of them, srun waits for
# them without end, and nobody can end them. So each task looks after itself: once its slurmstepd is gone, it records that its rank was
# killed, which ends the step as any failed rank does, and takes its processes with it. The watch lives as long as the pipe that the
# task's own process holds open, as heartbeat.sh has it.

# Seconds between looks; each reads one file of /proc.
readonly orphans_look_s=5 orphans_again_s=0.5
# 128 + SIGKILL, as for a rank that is killed itself.
readonly orphans_code=137

# orphans::watch RANK: of this task; `once`: of the lines of [once]. Sets KIT_TASK_FD, the pipe's number, into which rank.sh writes a line
# when its program has ended, and KIT_SLURMSTEPD, by which a rank sees that its slurmstepd is gone.
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

# Tells the watch that the task has ended by itself.
orphans::ended() {
    [[ -z "${KIT_TASK_FD:-}" ]] || { printf 'ended\n' >&"${KIT_TASK_FD}"; } 2>&- || true
}

# The nearest slurmstepd above this shell, past the container runtime's processes; 1 where there is none to be seen: in a PID namespace, or
# where users do not see the processes of others (hidepid).
orphans::find_slurmstepd() {
    KIT_SLURMSTEPD=$$
    while orphans::read_parent "${KIT_SLURMSTEPD}" && ((orphans_parent > 1)); do
        KIT_SLURMSTEPD="${orphans_parent}"
        ! orphans::is_slurmstepd "${KIT_SLURMSTEPD}" || return 0
    done
    unset KIT_SLURMSTEPD
    return 1
}

# Field 4 of proc(5)'s stat, after a name that may hold anything; 1 when the process is gone.
orphans::read_parent() {
    local line=""
    orphans_parent=0
    { IFS= read -r -d '' line <"/proc/$1/stat"; } 2>/dev/null || [[ -n "${line}" ]] || return 1
    read -r _ orphans_parent _ <<<"${line##*) }"
}

# orphans::has_lost SLURMSTEPD: whether it is gone, at two looks: a busy machine may fail one of them, for want of memory or of a file number,
# and what follows ends the task.
orphans::has_lost() {
    ! orphans::is_slurmstepd "$1" || return 1
    sleep "${orphans_again_s}" 2>&-
    ! orphans::is_slurmstepd "$1"
}

# Whether it is one and lives; a dead one may be there until its parent has taken note. Here and below messages go nowhere by a closed
# stderr: where Slurm has ended the FUSE daemons of a container, /dev/null cannot be opened, and bash would not read at all.
orphans::is_slurmstepd() {
    local line=""
    { read -r line <"/proc/$1/stat"; } 2>&-
    [[ "${line}" == *"(slurmstepd) "[!ZX]* ]]
}

# orphans::watch_container RUN-DIR: called outside a container with a PID namespace of its own: from inside no slurmstepd can be seen, and
# all processes of the namespace die at once. The worker inside names its rank through the pipe.
orphans::watch_container() {
    [[ -n "${KIT_FAILURES:-}" && -n "${SLURM_PROCID:-}" ]] || return 0
    orphans::find_slurmstepd || return 0
    exec {KIT_TASK_FD}> >(KIT_RUN_DIR="$1" orphans::loop "${KIT_SLURMSTEPD}" "${SLURM_PROCID}")
    export KIT_TASK_FD
    # Inside the container this number is another process's.
    unset KIT_SLURMSTEPD
}

# orphans::end_without SLURMSTEPD: ends this script, and what it became and started, once its slurmstepd is gone: nobody else would.
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
            # The end of the pipe without a line: torchrun has ended, or the task was killed, as bubblewrap does when its parent is gone.
            orphans::has_lost "$1" || return 0
            orphans::collect
            [[ "${KIT_SHAPE:-srun}" == srun || -n "${orphans_rank_left}" ]] || return 0
            break
        fi
        ! orphans::has_lost "$1" || break
    done
    orphans::say "${rank}"
    failures::record "${rank}" "${orphans_code}"
    orphans::collect
    { kill -KILL "${orphans_pids[@]}"; } 2>&-
}

orphans::say() {
    local runs="the ranks of a node" ends="rank $1 is ended" log="${KIT_RUN_DIR}/logs${KIT_ROLE:+/${KIT_ROLE}}/rank-$1.log"
    if [[ "$1" == once ]]; then
        runs="the lines of [once]" ends="they are ended" log="${KIT_RUN_DIR}/logs/once.log"
    fi
    log::error "slurmstepd, by which Slurm runs ${runs}, is gone: killed, or out of memory; ${ends}" 2>>"${log}"
}

# The processes of this task but this one, in orphans_pids, and whether the shell of a rank is among them. They are known by their
# environment, which nobody but their user can read. Bash alone, since an image may lack grep.
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
