#!/bin/bash
# A rank of prime-rl's trainer: trainer.sh CONFIG filesystem|nccl OUTPUTS CHECKPOINTS
set -euo pipefail

# shellcheck source-path=SCRIPTDIR
source "${BASH_SOURCE[0]%/*}/infiniband.sh"
# shellcheck source-path=SCRIPTDIR
source "${BASH_SOURCE[0]%/*}/identity.sh"
# shellcheck source-path=SCRIPTDIR
source "${BASH_SOURCE[0]%/*}/resume.sh"
identity::export orchestrator
infiniband::prefer

# Rollouts come by ZMQ. If the configuration names another transport, leave out these two options, which conflict with it.
argv=(python -m prime_rl.trainer.rl.train @ "$1"
    --rollout_transport.host "${KIT_ROLE_ORCHESTRATOR_ADDR}"
    --rollout_transport.port "${KIT_ROLE_ORCHESTRATOR_PORT_ROLLOUTS}")
if [[ "$2" == nccl ]]; then
    argv+=(--weight_broadcast.host 0.0.0.0 --weight_broadcast.port "${KIT_ROLE_TRAINER_PORT_BROADCAST}")
fi
if ((RANK == 0)); then
    resume::clean "$3"
fi
mapfile -t resume < <(resume::options "$3" "$4")
# The job's own arguments come last.
exec "${argv[@]}" "${resume[@]}" "${@:5}"
