# shellcheck shell=bash
# Links from the run's logs to the files that Slurm writes outside the run folder (slurm.output, slurm.error).

output_links::link() {
    # When the script runs by hand, its output is the user's terminal.
    [[ -n "${environment_batch}" ]] || return 0
    output_links::link_one batch "/proc/$$/fd/1"
    output_links::link_one error "/proc/$$/fd/2"
}

# output_links::link_one NAME FD: makes no link where a log of the run is already that file.
output_links::link_one() {
    local -r name="$1" fd="$2"
    local log
    [[ -f "${fd}" ]] || return 0
    for log in "${KIT_RUN_DIR}"/logs/*.log; do
        [[ "${log}" -ef "${fd}" ]] && return 0
    done
    ln --symbolic --force --no-target-directory -- "$(readlink -- "${fd}")" "${KIT_RUN_DIR}/logs/${name}-${SLURM_JOB_ID}.log"
}
