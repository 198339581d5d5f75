#!/bin/bash
# Starts prime-rl's evals program, which evaluates the weights that a fine-tuning sends: evals.sh CONFIG CHECKPOINTS filesystem|nccl COPIES
set -euo pipefail

# shellcheck source-path=SCRIPTDIR
source "${BASH_SOURCE[0]%/*}/addresses.sh"
# shellcheck source-path=SCRIPTDIR
source "${BASH_SOURCE[0]%/*}/identity.sh"
# shellcheck source-path=SCRIPTDIR
source "${BASH_SOURCE[0]%/*}/resume.sh"
identity::export trainer

mapfile -t admin < <(addresses::servers "$4")
argv=(evals @ "$1"
    --eval.client.base-url "http://${KIT_ROLE_ROUTER_ADDR}:${KIT_ROLE_ROUTER_PORT_HTTP}/v1"
    --eval.client.admin-base-url "${admin[@]}"
    --eval.env-server-base-port "${KIT_ROLE_ENVIRONMENTS_PORT_FIRST}")
if [[ "$3" == nccl ]]; then
    argv+=(--weight_broadcast.host "${KIT_ROLE_TRAINER_ADDR}" --weight_broadcast.port "${KIT_ROLE_TRAINER_PORT_BROADCAST}")
fi
step="$(resume::sft_step "$2")"
if [[ -n "${step}" ]]; then
    argv+=(--online.resume-step "${step}")
fi
exec "${argv[@]}"
