# shellcheck shell=bash
# shellcheck disable=SC2154 # other libraries set signals_got and more; finish in batch.sh sets what and code
# A site's own parts: lib/site/NAME.sh, from the folder that [parts] of the cluster's file names. KIT_SITE_PARTS has each with its phases. A
# phase runs in a bash of its own, on this node, with a time limit: what a site adds cannot change or stop this script.
#
#   begun           the batch script has listed its nodes
#   before_ranks    once, after all checks of the nodes; a code other than 0 ends the job
#   before_attempt  each time before the ranks start
#   end             all steps are gone; KIT_OUTCOME is end, or requeue or requeued: the job goes back to the queue. KIT_EXIT_CODE

site_parts::begun() { site_parts::call begun; }
site_parts::before_ranks() { site_parts::call before_ranks; }
site_parts::before_attempt() { site_parts::call before_attempt; }

# Slurm's own end of a job leaves no time for more than the kit's records.
site_parts::end() {
    if [[ -z "${signals_slurms_term}" ]]; then
        site_parts::call end
    else
        log::info "the site's own parts do not run: Slurm is ending the job"
    fi
}

# site_parts::call PHASE: runs it in all parts that have it. Only before_ranks stops at the first that fails, and returns its code.
site_parts::call() {
    local one
    local -i came
    for one in "${KIT_SITE_PARTS[@]}"; do
        [[ " ${one#* } " == *" $1 "* ]] || continue
        site_parts::run "${one%% *}" "$1"
        came=$?
        [[ "$1" != before_ranks ]] || ((came == 0)) || return "${came}"
    done
    return 0
}

# site_parts::run PART PHASE. A signal that ends the job ends the phase, too; at the end, signals are over.
site_parts::run() {
    local -i came
    env KIT_RUN_DIR="${KIT_RUN_DIR}" KIT_JOB_NAME="${KIT_JOB_NAME}" KIT_OUTCOME="${what:-}" KIT_EXIT_CODE="${code:-}" \
        timeout --kill-after=5 "${KIT_SITE_PARTS_LIMIT}" \
        bash -uc 'source "${KIT_RUN_DIR}/lib/site/$1.sh"; "$1::$2"' site-part "$1" "$2" </dev/null &
    local -ri pid=$!
    while kill -0 "${pid}" 2>/dev/null; do
        [[ "$2" == end || -z "${signals_got}" ]] || kill "${pid}" 2>/dev/null
        sleep 0.1
    done
    wait "${pid}"
    came=$?
    [[ -z "${signals_got}" || "$2" == end ]] || return 143
    case "${came}" in
        0) ;;
        124 | 137) log::error "part $1 of the site: $2 took longer than ${KIT_SITE_PARTS_LIMIT} s, parts.timeout_s" ;;
        *) log::error "part $1 of the site: $2 ended with exit code ${came}" ;;
    esac
    return "${came}"
}
