# shellcheck shell=bash
# What Slurm and the launcher say of a task goes to a file of its own, on the task's own node: task-<n>.log. Mostly it says nothing. Once no
# step is left these become one file, so that what a run keeps does not grow with its tasks.

# Bytes of a file that stays as it is: with torchrun's --tee it holds what the ranks said.
readonly task_logs_most=65536

# Into task.log of the same folder, in the order of the tasks, each with its number in front.
task_logs::merge() {
    local folder file
    find "${KIT_RUN_DIR}/logs" -maxdepth 2 -name 'task-*.log' -empty -delete 2>/dev/null
    for folder in "${KIT_RUN_DIR}/logs" "${KIT_RUN_DIR}"/logs/*/; do
        while IFS= read -r file; do
            if sed "s/^/${file%.log}: /" -- "${folder%/}/${file}" >>"${folder%/}/task.log"; then
                rm -f -- "${folder%/}/${file}"
            fi
        done < <(find "${folder}" -maxdepth 1 -name 'task-*.log' -size "-${task_logs_most}c" -printf '%f\n' 2>/dev/null | sort --version-sort)
    done
}
