#!/bin/bash
# One address for all inference servers: router.sh
set -euo pipefail

workers=()
for node in ${KIT_ROLE_INFERENCE_NODES}; do
    workers+=("http://${node}:${KIT_ROLE_INFERENCE_PORT_HTTP}")
done
exec vllm-router --host 0.0.0.0 --port "${KIT_ROLE_ROUTER_PORT_HTTP}" --worker-startup-timeout-secs 4200 --worker-urls "${workers[@]}"
