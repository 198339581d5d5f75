# shellcheck shell=bash
# Messages of Slurm and the launcher about a task go to the task's own file, task-<n>.log, on its node. The file is mostly empty.
# Once no step is left, these files are merged into one, so that the number of files does not grow with the tasks.

# A file with more bytes stays separate: with torchrun's --tee it holds the ranks' output.
readonly task_logs_most=65536

# Merges into task.log of the same folder, in the order of the tasks, each line with its task in front.
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
