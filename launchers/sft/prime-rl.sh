#!/bin/bash
# A rank of prime-rl's supervised fine-tuning: prime-rl.sh CONFIG CHECKPOINTS
set -euo pipefail

# Left to itself, each rank draws a name of its own for the folder that all write to.
argv=(python -m prime_rl.trainer.sft.train @ "$1" --run.dir .)
# It resumes when it is told to. .metadata is what torch's distributed checkpoint writes last.
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
