# shellcheck shell=bash
# Containers that Pyxis unpacks get a name: the first step unpacks, the later ones of the job reuse what it made. The name holds the job,
# the start of the batch script and the digest, so it never stands for other bytes, nor for what a killed start left half unpacked. Pyxis
# removes unnamed containers only (named ones too with container_scope=job): a step of its own, container.sh, removes these, whatever the
# end. Where Pyxis mounts the image there is nothing to reuse, and a name would make it unpack.

# What the names of this start begin with; empty: none are given.
container_names_prefix=""
# A pattern for the images that Pyxis mounts all the same.
container_names_mounted=""
# Whether a first start takes long.
declare -i container_names_unpacked=0

# Called before the first step with a container, which has to be the probe: where it does not end well, nothing is started again.
container_names::begin() {
    ((${#KIT_CONTAINER_ARGV[@]})) && container_names::unpacks || return 0
    container_names_unpacked=1
    ((${#KIT_PROBE_ARGV[@]})) || return 0
    container_names_prefix="kit-${SLURM_JOB_ID}-${EPOCHSECONDS}"
    log::info "Pyxis unpacks images here: once, as ${container_names_prefix}-*, for all steps"
    local -a active
    mapfile -t active < <(squeue --me --noheader --format=%A 2>/dev/null)
    KIT_NODE_NAMES="${nodes_all[*]}" steps::start kit-container "${KIT_CONTAINER_ARGV[@]}" "${container_names_prefix}" "${active[@]}"
}

# Once the ranks are gone. A job that Slurm is ending has no time to wait: the step got Slurm's own TERM, and Slurm waits for it.
container_names::end() {
    local -r pid="${steps_pid[kit-container]:-}"
    local -i tenths
    [[ -n "${pid}" && -z "${signals_slurms_term}" ]] || return 0
    rm -f -- "${KIT_RUN_DIR}"/state/container-*
    steps::signal TERM kit-container
    for ((tenths = 0; tenths < 600; tenths++)); do
        kill -0 "${pid}" 2>/dev/null || break
        sleep 0.1
    done
    steps::end 0 kit-container
}

# container_names::name SRUN-WORD…: sets container_names_named to the option that names this step's container; empty for a step without one, and for
# a writable one, which would hold what an earlier attempt wrote.
container_names::name() {
    local word digest=""
    container_names_named=()
    [[ -n "${container_names_prefix}" ]] || return 0
    for word in "$@"; do
        case "${word}" in
            --container-image=${container_names_mounted}) return 0 ;;
            --container-image=*@sha256:*) digest="${word##*@sha256:}" ;;
            --container-image=*) digest="${word##*/}" ;;
            --container-writable) return 0 ;;
            --*) ;;
            *) break ;;
        esac
    done
    [[ -n "${digest}" ]] || return 0
    container_names_named=(--container-name="${container_names_prefix}-${digest:0:12}:no_exec")
    # For `kit shell --attach`.
    printf '%s\n' "${container_names_named[0]}" >"${KIT_RUN_DIR}/state/container-${digest:0:12}"
}

# Whether Pyxis will unpack an image of the job on these nodes: it mounts files, and those only with use_squashfuse.
container_names::unpacks() {
    if [[ -n "${KIT_PYXIS_UNPACKS}" ]]; then
        [[ "${KIT_PYXIS_UNPACKS}" == yes ]]
        return
    fi
    local options
    options="$(container_names::plugin)" || return 1
    if [[ " ${options} " =~ [[:space:]]use_squashfuse=(1|true|yes|y)[[:space:]] ]]; then
        container_names_mounted='/*'
        # Files are mounted then; references are not.
        [[ " ${KIT_IMAGES[*]}" == *" docker://"* && " ${options}" != *" importer="* ]]
    fi
}

# The plugin's line in plugstack.conf as this node's slurmd reads it; 1 when there is none to be found.
container_names::plugin() {
    local conf pattern
    conf="$(scontrol show config 2>/dev/null | awk '$1 == "PlugStackConfig" { print $3 }')"
    # Where slurmd keeps what a configless controller sent.
    [[ -r "${conf}" ]] || conf=/run/slurm/conf/plugstack.conf
    local -a files=("${conf}")
    while read -r pattern; do
        [[ "${pattern}" == /* ]] || pattern="${conf%/*}/${pattern}"
        mapfile -t -O "${#files[@]}" files < <(compgen -G "${pattern}")
    done < <(awk '$1 == "include" { print $2 }' "${conf}" 2>/dev/null)
    grep --no-filename -E '^[[:space:]]*(required|optional)[[:space:]]+[^[:space:]]*spank_pyxis\.so' -- "${files[@]}" 2>/dev/null
}
