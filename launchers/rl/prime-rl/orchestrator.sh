#!/bin/bash
# prime-rl's orchestrator: orchestrator.sh CONFIG filesystem|nccl
set -euo pipefail

# Completions come through the router; weights go to each server itself.
admin=()
for node in ${KIT_ROLE_INFERENCE_NODES}; do
    admin+=("http://${node}:${KIT_ROLE_INFERENCE_PORT_HTTP}/v1")
done
argv=(orchestrator @ "$1"
    --model.client.base-url "http://${KIT_ROLE_ROUTER_ADDR}:${KIT_ROLE_ROUTER_PORT_HTTP}/v1"
    --model.client.admin-base-url "${admin[@]}"
    --rollout_transport.host "${KIT_ROLE_ORCHESTRATOR_ADDR}"
    --rollout_transport.port "${KIT_ROLE_ORCHESTRATOR_PORT_ROLLOUTS}")
if [[ "$2" == nccl ]]; then
    argv+=(--weight_broadcast.host "${KIT_ROLE_TRAINER_ADDR}" --weight_broadcast.port "${KIT_ROLE_TRAINER_PORT_BROADCAST}")
fi
exec "${argv[@]}"
