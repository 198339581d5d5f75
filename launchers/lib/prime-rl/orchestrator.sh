#!/bin/bash
# Starts prime-rl's orchestrator: orchestrator.sh CONFIG filesystem|nccl OUTPUTS CHECKPOINTS COPIES (servers per inference node)
set -euo pipefail

# shellcheck source-path=SCRIPTDIR
source "${BASH_SOURCE[0]%/*}/addresses.sh"
# shellcheck source-path=SCRIPTDIR
source "${BASH_SOURCE[0]%/*}/identity.sh"
# shellcheck source-path=SCRIPTDIR
source "${BASH_SOURCE[0]%/*}/resume.sh"
identity::export orchestrator

# Completions come through the router; weights go to each server itself.
mapfile -t admin < <(addresses::servers "$5")
argv=(orchestrator @ "$1"
    --model.client.base-url "http://${KIT_ROLE_ROUTER_ADDR}:${KIT_ROLE_ROUTER_PORT_HTTP}/v1"
    --model.client.admin-base-url "${admin[@]}"
    --env-server-base-port "${KIT_ROLE_ENVIRONMENTS_PORT_FIRST}"
    --rollout_transport.host "${KIT_ROLE_ORCHESTRATOR_ADDR}"
    --rollout_transport.port "${KIT_ROLE_ORCHESTRATOR_PORT_ROLLOUTS}")
if [[ "$2" == nccl ]]; then
    argv+=(--weight_broadcast.host "${KIT_ROLE_TRAINER_ADDR}" --weight_broadcast.port "${KIT_ROLE_TRAINER_PORT_BROADCAST}")
fi
mapfile -t resume < <(resume::options "$3" "$4")
exec "${argv[@]}" "${resume[@]}"
