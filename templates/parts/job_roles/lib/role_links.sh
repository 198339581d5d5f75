#!/bin/bash
# Links to the logs of a role's nodes. rank.sh sources it in the first rank of each node, which makes them.

# role_links::make: logs/latest_<role>_node_rank_<n>.log is the log of the first rank on the role's n-th node. The trainer, the servers
# and the orchestrator of an RL run have prime-rl's names, too: latest_train_node_rank_<n>, latest_infer_node_rank_<n>, latest_orchestrator.
# A rename keeps a link there at all times.
role_links::make() {
    local -r node="node_rank_${NODE_RANK}"
    local -rA also=([trainer]="train_${node}" [inference]="infer_${node}" [orchestrator]=orchestrator)
    local name link
    for name in "${KIT_ROLE}_${node}" ${also[${KIT_ROLE}]:-}; do
        link="${KIT_RUN_DIR}/logs/latest_${name}.log"
        # shellcheck disable=SC2153 # RANK comes from torchrun or worker.sh
        ln -sf -- "${KIT_ROLE}/rank-${RANK}.log" "${link}.new"
        mv -fT -- "${link}.new" "${link}"
    done
}

role_links::make
