# shellcheck shell=bash
# Names of containers that Pyxis unpacks: the first step unpacks an image, and later steps of the job reuse the container by its
# name. It holds the job, the start of the batch script and the digest: it never means other bytes, nor a container that a killed start
# left half unpacked. However the job ends, a separate step, container.sh, removes them: Pyxis removes only unnamed containers (with
# container_scope=job also named ones). An image that Pyxis mounts gets no name: with one, Pyxis would unpack it.

# The beginning of all names of this start. Empty: containers get no name.
container_names_prefix=""
# A pattern for images that Pyxis mounts anyway.
container_names_mounted=""
# Whether a first start takes long, because images are unpacked.
declare -gi container_names_unpacked=0

# Called before the first step with a container. That step must be the probe: if it fails, nothing else is started.
container_names::check() {
    container_names::unpacks || return 0
    container_names_unpacked=1
    [[ -n "${KIT_PROBE_ARGV:-}" ]] || return 0
    container_names_prefix="kit-${SLURM_JOB_ID}-${EPOCHSECONDS}"
    log::info "Pyxis unpacks images here: once, as ${container_names_prefix}-*, for all steps"
    local -a active
    mapfile -t active < <(squeue --me --noheader --format=%A 2>/dev/null)
    KIT_NODE_NAMES="${nodes_all[*]}" steps::start kit-container "${KIT_CONTAINER_ARGV[@]}" "${container_names_prefix}" "${active[@]}"
}

# Prints the seconds that the first start of a container may take longer.
container_names::first_start_s() {
    ((!container_names_unpacked)) || printf '%d' "${KIT_UNPACK_TIMEOUT}"
}

# Their own step outlives those that use the containers.
container_names::keeps_step() {
    [[ "$1" == kit-container ]]
}

# Ends the step once the ranks are gone. If Slurm is ending the job, there is no time: the step got Slurm's own TERM, and Slurm
# waits for it.
container_names::steps_ended() {
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

# container_names::step_options SRUN-WORD…: names this step's container. Not for a step without a container, and not for a writable
# one, which would hold files that an earlier attempt wrote.
container_names::step_options() {
    local word digest=""
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
    word="--container-name=${container_names_prefix}-${digest:0:12}:no_exec"
    steps::add_options "${word}"
    # For `kit shell --attach`.
    printf '%s\n' "${word}" >"${KIT_RUN_DIR}/state/container-${digest:0:12}"
}

# Whether Pyxis will unpack an image of the job on these nodes. It mounts only files, and only with use_squashfuse.
container_names::unpacks() {
    if [[ -n "${KIT_PYXIS_UNPACKS}" ]]; then
        [[ "${KIT_PYXIS_UNPACKS}" == yes ]]
        return $?
    fi
    local options
    options="$(container_names::plugin)" || return 1
    if [[ " ${options} " =~ [[:space:]]use_squashfuse=(1|true|yes|y)[[:space:]] ]]; then
        container_names_mounted='/*'
        # Files are mounted then, but references are not.
        [[ " ${KIT_IMAGES[*]}" == *" docker://"* && " ${options}" != *" importer="* ]]
    fi
}

# Prints the plugin's line in plugstack.conf, as this node's slurmd reads it. Returns 1 where none is found.
container_names::plugin() {
    local conf pattern
    conf="$(scontrol show config 2>/dev/null | awk '$1 == "PlugStackConfig" { print $3 }')"
    # The folder where slurmd keeps files that a configless controller sent.
    [[ -r "${conf}" ]] || conf=/run/slurm/conf/plugstack.conf
    local -a files=("${conf}")
    while read -r pattern; do
        [[ "${pattern}" == /* ]] || pattern="${conf%/*}/${pattern}"
        mapfile -t -O "${#files[@]}" files < <(compgen -G "${pattern}")
    done < <(awk '$1 == "include" { print $2 }' "${conf}" 2>/dev/null)
    grep --no-filename -E '^[[:space:]]*(required|optional)[[:space:]]+[^[:space:]]*spank_pyxis\.so' -- "${files[@]}" 2>/dev/null
}
