#!/bin/bash
# prime-rl resumes only when it is told to. These functions let a restarted job continue from its newest complete step.

# resume::step OUTPUTS CHECKPOINTS: prints the newest step that both the orchestrator and the trainer have saved, if there is one.
# torch's distributed checkpoint writes .metadata last.
resume::step() {
    local path step newest=0
    for path in "$1"/checkpoints/step_*/orchestrator/progress.pt; do
        step="${path%/orchestrator/progress.pt}"
        step="${step##*/step_}"
        if [[ -f "$2/checkpoints/step_${step}/trainer/.metadata" ]] && ((step > newest)); then
            newest="${step}"
        fi
    done
    if ((newest > 0)); then
        printf '%s\n' "${newest}"
    fi
}

# resume::options OUTPUTS CHECKPOINTS: prints the options to resume, one per line.
resume::options() {
    local step=""
    if ((KIT_RESTART_COUNT > 0)); then
        step="$(resume::step "$1" "$2")"
    fi
    if [[ -n "${step}" ]]; then
        printf '%s\n' --resume.step "${step}"
    fi
}

# resume::sft_step CHECKPOINTS: the same for a fine-tuning, where only the trainer saves; nothing on the first start.
resume::sft_step() {
    local whole step newest=0
    for whole in "$1"/checkpoints/step_*/trainer/.metadata; do
        step="${whole%/trainer/.metadata}"
        step="${step##*/step_}"
        if [[ -f "${whole}" ]] && ((KIT_RESTART_COUNT > 0 && step > newest)); then
            newest="${step}"
        fi
    done
    if ((newest > 0)); then
        printf '%s\n' "${newest}"
    fi
}

# resume::sft_options CHECKPOINTS: prints the options to resume, one per line.
resume::sft_options() {
    local -r step="$(resume::sft_step "$1")"
    if [[ -n "${step}" ]]; then
        printf '%s\n' --resume.step "${step}"
    fi
}

# resume::clean OUTPUTS: weights and rollouts of the start before would be taken for new ones.
resume::clean() {
    if ((KIT_RESTART_COUNT > 0)); then
        rm -rf -- "${1:?}/broadcasts" "${1:?}/rollouts"
    fi
}
