# shellcheck shell=bash
# shellcheck disable=SC2154 # lib/nodes.sh and lib/steps.sh set nodes_all and steps_pid
# Checkpoints in memory (`[checkpoint] memory_every`): step kit-memory has one process on each node (bin/memory.sh), which keeps the
# folder of kit_memory.py over the starts of the ranks. The folder lasts as long as that process.

# Called by the batch script before each attempt. A step that has ended is not started again: it may end again.
memory_checkpoints::before_attempt() {
    if [[ -z "${memory_checkpoints_started:-}" ]]; then
        memory_checkpoints_started=1
        KIT_NODE_NAMES="${nodes_all[*]}" steps::start kit-memory "${KIT_MEMORY_ARGV[@]}"
    elif ! kill -0 "${steps_pid[kit-memory]:-0}" 2>/dev/null; then
        log::info "step kit-memory has ended: there are no checkpoints in memory. See ${KIT_RUN_DIR}/logs/memory.log"
    fi
}

# Sets memory_checkpoints_folder: this node's, by the name that kit_memory_files.folder gives it. Starts no process.
memory_checkpoints::find_folder() {
    memory_checkpoints_folder="/dev/shm/kit-memory-${EUID}-${SLURM_JOB_ID:-}.${SLURM_RESTART_COUNT:-0}-${SLURMD_NODENAME:-${HOSTNAME}}"
}

# Makes the folder, and holds its lock while this process lives.
memory_checkpoints::begin() {
    memory_checkpoints::find_folder
    mkdir -m 0700 -- "${memory_checkpoints_folder}" 2>/dev/null \
        || [[ -O "${memory_checkpoints_folder}" && ! -L "${memory_checkpoints_folder}" ]] || return 1
    exec {memory_checkpoints_fd}<"${memory_checkpoints_folder}"
    flock --nonblock "${memory_checkpoints_fd}"
}

memory_checkpoints::remove() {
    rm -rf -- "${memory_checkpoints_folder}"
}

memory_checkpoints::end() {
    memory_checkpoints::remove_unused
}

# Removes the folder if nobody holds its lock: then its process was killed. Called at the end of each rank, too.
memory_checkpoints::remove_unused() {
    local fd
    memory_checkpoints::find_folder
    [[ -O "${memory_checkpoints_folder}" && ! -L "${memory_checkpoints_folder}" ]] && command -v flock >/dev/null || return 0
    { exec {fd}<"${memory_checkpoints_folder}"; } 2>/dev/null || return 0
    ! flock --nonblock "${fd}" || memory_checkpoints::remove
    exec {fd}<&-
}
