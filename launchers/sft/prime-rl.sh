#!/bin/bash
# Starts a rank of prime-rl's supervised fine-tuning: prime-rl.sh CONFIG CHECKPOINTS
set -euo pipefail

# All ranks write to one folder. Without --run.dir each rank would choose another name for it.
argv=(python -m prime_rl.trainer.sft.train @ "$1" --run.dir .)
# prime-rl resumes only when it is told to. torch's distributed checkpoint writes .metadata last.
newest=0
for whole in "$2"/checkpoints/step_*/trainer/.metadata; do
    step="${whole%/trainer/.metadata}"
    step="${step##*/step_}"
    if [[ -f "${whole}" ]] && ((KIT_RESTART_COUNT > 0 && step > newest)); then
        newest="${step}"
    fi
done
if ((newest > 0)); then
    argv+=(--resume.step "${newest}")
fi
exec "${argv[@]}"
