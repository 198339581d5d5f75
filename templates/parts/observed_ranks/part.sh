# shellcheck shell=bash
# For the stall watch of a job with [watch]: finds dead nodes, and stalled ranks of a program that reports nothing, from the samples
# of each node (bin/sample-ranks.sh), which rank_samples.awk judges. It does not ask Slurm. The phases use variables of
# stall_watch::loop.
# shellcheck disable=SC2034,SC2154

# Seconds after the start of the ranks in which nothing is judged, between two looks, and for which a node must be silent.
readonly observed_ranks_settle=30 observed_ranks_every=5 observed_ranks_silent=8
# Seconds without a move, where the job gives none.
readonly observed_ranks_limit=120
observed_ranks_said="" observed_ranks_alarm="" observed_ranks_looked=0 observed_ranks_silent_since=0

# Says what is seen of this job's ranks. py-spy is looked for as sample-ranks.sh does.
observed_ranks::begun() {
    local stacks=yes
    [[ -x "${KIT_RUN_DIR}/bin/py-spy" ]] || command -v py-spy >/dev/null || stacks="no, there is no py-spy"
    log::info "watch: steps: as the program reports them, else from its log (kit top, kit why); processes: sampled on each node;" \
        "stacks: ${stacks}; collectives: NCCL's, written by torch's flight recorder at a time-out"
}

# Sets the fields of the caller's alarm, unless it has one. Uses the caller's since, seconds, least and furthest, which is `-` where no
# rank reports steps.
observed_ranks::judge_stall() {
    [[ -z "${rule}" ]] && ((EPOCHSECONDS - ${since%.*} >= observed_ranks_settle)) || return 0
    ((EPOCHSECONDS - observed_ranks_looked < observed_ranks_every)) || observed_ranks::look
    [[ -n "${observed_ranks_said}" ]] || return 0
    read -r rule role rank node step phase idle waiting count others <<<"${observed_ranks_said}"
    if ((begun)); then
        [[ "${rule}" != observed-node ]] || ! observed_ranks::unproven || rule=observed-slow
        # What was only slow has become a stall: that is another alarm, with its own evidence and patience.
        [[ "${observed_ranks_alarm}" != observed-slow || "${rule}" == observed-slow ]] || begun=0
    fi
}

observed_ranks::look() {
    local said reported=0 limit=$((observed_ranks_limit > least ? observed_ranks_limit : least))
    local -a files=("${KIT_RUN_DIR}"/monitor/slurm-"${SLURM_JOB_ID}".*.samples)
    observed_ranks_looked="${EPOCHSECONDS}"
    [[ -e "${files[0]}" ]] || return 0
    [[ "${seconds}" == 0 ]] || limit="${seconds}"
    [[ -z "${furthest}" || "${furthest}" == - ]] || reported=1
    # The contents first: NFS asks its server for a file's time when the file is opened.
    said="$({ tail -v -n 1 -- "${files[@]}"; stat --format='@mtime %Y %n' -- "${files[@]}"; } 2>/dev/null \
        | awk -v nodes=" ${KIT_NODE_NAMES} " -v limit="${limit}" -v reported="${reported}" \
            -f "${KIT_RUN_DIR}/lib/rank_samples.awk")"
    [[ "${said}" != unsure ]] || return 0
    if [[ "${said}" != observed-node* ]]; then
        observed_ranks_silent_since=0
    elif ((!observed_ranks_silent_since)); then
        observed_ranks_silent_since="${EPOCHSECONDS}" said=""
    elif ((EPOCHSECONDS - observed_ranks_silent_since < observed_ranks_silent)); then
        said=""
    fi
    observed_ranks_said="${said}"
}

# Whether the silent node has answered when evidence was gathered, or no other node has. Uses the caller's number and node.
observed_ranks::unproven() {
    local -r folder="${KIT_RUN_DIR}/state/stall-${number}"
    [[ ! -e "${folder}/complete" || -e "${folder}/node-${node}.txt" ]] || ! compgen -G "${folder}/node-*.txt" >/dev/null
}

# Reports an alarm, with the caller's fields of it.
observed_ranks::say_stall() {
    observed_ranks_alarm="${rule}"
    case "${rule}:${phase}" in
        *:-) log::error "node ${node} gives no sign of life, for ${idle} s; ${waiting} ranks are on other nodes" ;;
        *:gone:*) log::error "${who} has ended, ${idle} s ago; ${waiting} ranks wait" ;;
        observed-stall:*) log::error "${who} is stalled (${phase}), for ${idle} s; ${waiting} ranks wait" ;;
        *) log::error "${who} may be slow: for ${idle} s it has been elsewhere (${phase}) than the other ${waiting} ranks, which do not move" ;;
    esac
    [[ "${rule}" != observed-slow ]] || log::info "this may be work, or a wait on purpose: nothing is ended for it"
}
