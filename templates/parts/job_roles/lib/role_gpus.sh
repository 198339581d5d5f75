# shellcheck shell=bash
# The GPUs of a role (`gpus` of a table in [roles]).

# Where drivers say that GPUs of AMD are here.
role_gpus_amd=/dev/kfd

# role_gpus::choose INDICES: chooses this role's GPUs by their places among the GPUs that Slurm gave the job, in each
# variable in which Slurm names them. Where Slurm names none, the places are the GPUs' own numbers. 'none': no GPU. Without INDICES:
# all. A place that Slurm did not give ends the task with 2.
role_gpus::choose() {
    local name
    local -a names=() wanted
    [[ -n "$1" ]] || return 0
    for name in CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES ZE_AFFINITY_MASK GPU_DEVICE_ORDINAL; do
        [[ -z "${!name:-}" ]] || names+=("${name}")
    done
    if ((!${#names[@]})) || [[ "$1" == none ]]; then
        # HIP reads CUDA_VISIBLE_DEVICES, too, and counts in what ROCR_VISIBLE_DEVICES has left.
        [[ -e "${role_gpus_amd}" ]] && names=(ROCR_VISIBLE_DEVICES) || names=(CUDA_VISIBLE_DEVICES ZE_AFFINITY_MASK)
        export "${names[@]/%/="${1/none/}"}"
        return 0
    fi
    IFS=, read -ra wanted <<<"$1"
    for name in "${names[@]}"; do
        role_gpus::narrow "${name}" "${wanted[@]}"
    done
    if [[ -n "${ROCR_VISIBLE_DEVICES:-}" && -e "${role_gpus_amd}" ]]; then
        for name in CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES; do
            [[ -z "${!name:-}" ]] || export "${name}=$(seq -s, 0 $((${#wanted[@]} - 1)))"
        done
    fi
}

# role_gpus::narrow NAME INDEX…: leaves in the list NAME the entries at these places.
role_gpus::narrow() {
    local -r name="$1"
    shift
    local -a given chosen=()
    local index
    IFS=, read -ra given <<<"${!name}"
    for index in "$@"; do
        if [[ -z "${given[index]:-}" ]]; then
            log::error "role ${KIT_ROLE:-}: GPU ${index} is not among those that Slurm gave: ${name}=${!name}"
            exit 2
        fi
        chosen+=("${given[index]}")
    done
    local IFS=,
    export "${name}=${chosen[*]}"
}
