#!/bin/bash
# Starts a rank of prime-rl's supervised fine-tuning: sft-trainer.sh CONFIG CHECKPOINTS OUTPUTS [filesystem|nccl]
set -euo pipefail

# shellcheck source-path=SCRIPTDIR
source "${BASH_SOURCE[0]%/*}/identity.sh"
# shellcheck source-path=SCRIPTDIR
source "${BASH_SOURCE[0]%/*}/infiniband.sh"
# shellcheck source-path=SCRIPTDIR
source "${BASH_SOURCE[0]%/*}/resume.sh"
identity::export trainer
infiniband::prefer

# All ranks write to one folder. Without --run.dir each rank would choose another name for it.
argv=(python -m prime_rl.trainer.sft.train @ "$1" --run.dir .)
if [[ "${4:-}" == nccl ]]; then
    argv+=(--weight_broadcast.host 0.0.0.0 --weight_broadcast.port "${KIT_ROLE_TRAINER_PORT_BROADCAST}")
fi
if ((RANK == 0)); then
    resume::clean "$3"
fi
mapfile -t resume < <(resume::sft_options "$2")
# The job's own arguments come last.
exec "${argv[@]}" "${resume[@]}" "${@:5}"
