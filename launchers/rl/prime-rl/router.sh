#!/bin/bash
# One address for all inference servers: router.sh COPIES, the number of copies of the model on each server
set -euo pipefail

workers=()
for node in ${KIT_ROLE_INFERENCE_NODES}; do
    workers+=("http://${node}:${KIT_ROLE_INFERENCE_PORT_HTTP}")
done
# All requests of one rollout go to one copy, which has the beginning of the rollout in its cache.
exec vllm-router --host 0.0.0.0 --port "${KIT_ROLE_ROUTER_PORT_HTTP}" --prometheus-port "${KIT_ROLE_ROUTER_PORT_METRICS}" \
    --policy consistent_hash --request-id-headers x-session-id --intra-node-data-parallel-size "$1" \
    --worker-startup-timeout-secs 4200 --worker-urls "${workers[@]}"
