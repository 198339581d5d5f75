#!/bin/bash
# prime-rl resumes when it is told to. A job that was started again continues from the newest step that is whole.

# resume::step OUTPUTS CHECKPOINTS: the newest step that both the orchestrator and the trainer have saved; nothing where there is none.
# .metadata is what torch's distributed checkpoint writes last.
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

# resume::options OUTPUTS CHECKPOINTS: a line for each option to resume.
resume::options() {
    local step=""
    if ((KIT_RESTART_COUNT > 0)); then
        step="$(resume::step "$1" "$2")"
    fi
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
