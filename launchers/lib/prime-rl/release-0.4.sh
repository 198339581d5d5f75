#!/bin/bash
# Starts a program of prime-rl 0.4: release-0.4.sh rl|sft|inference|orchestrator CONFIG filesystem|nccl|none OUTPUTS [ARGUMENT...]
set -euo pipefail

# shellcheck source-path=SCRIPTDIR
source "${BASH_SOURCE[0]%/*}/infiniband.sh"

# release::broadcast TYPE HOST: prints the options of a broadcast by NCCL, one per line.
release::broadcast() {
    if [[ "$1" == nccl ]]; then
        printf '%s\n' --weight_broadcast.host "$2" --weight_broadcast.port "${KIT_ROLE_TRAINER_PORT_BROADCAST}"
    fi
}

# release::resume PROGRAM CONFIG: prints the options with which a later start continues from the newest checkpoint.
release::resume() {
    if ((KIT_RESTART_COUNT > 0)) && grep -q '^\[ckpt\]' "$2"; then
        printf '%s\n' --ckpt.resume-step=-1
    fi
}

# release::servers: prints the addresses of the servers, separated by commas.
release::servers() {
    local node
    local -a found=()
    for node in ${KIT_ROLE_INFERENCE_NODES}; do
        found+=("http://${node}:${KIT_ROLE_INFERENCE_PORT_HTTP}/v1")
    done
    local IFS=,
    printf '%s\n' "${found[*]}"
}

readonly program="$1" config="$2" type="$3" outputs="$4"
infiniband::prefer
ulimit -n 65536 2>/dev/null || ulimit -n "$(ulimit -Hn)"
mapfile -t resume < <(release::resume "${program}" "${config}")
case "${program}" in
    inference)
        exec inference @ "${config}" --server.port "${KIT_ROLE_INFERENCE_PORT_HTTP}"
        ;;
    orchestrator)
        mapfile -t more < <(release::broadcast "${type}" "${KIT_ROLE_TRAINER_ADDR}")
        exec orchestrator @ "${config}" --output_dir "${outputs}/run_default" --client.base-url "$(release::servers)" "${more[@]}" "${resume[@]}"
        ;;
    rl | sft)
        mapfile -t more < <(release::broadcast "${type}" 0.0.0.0)
        # Rollouts and weights of an earlier start would be taken for new ones.
        if ((RANK == 0 && KIT_RESTART_COUNT > 0)); then
            rm -rf -- "${outputs:?}"/run_*/rollouts "${outputs:?}"/run_*/broadcasts "${outputs:?}/rollouts"
        fi
        # The job's own arguments come last.
        exec python -m "prime_rl.trainer.${program}.train" @ "${config}" "${more[@]}" "${resume[@]}" "${@:5}"
        ;;
esac
