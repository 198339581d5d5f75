#!/bin/bash
# bubblewrap.sh --image=FILE --workdir=DIR [--writable] [--remap-root] [--isolated] [--capability=NAME]… [--keep-env=NAME]…
#     [--mount SOURCE TARGET ro|rw]… -- COMMAND…
# Mounts the squashfs image in a mount namespace of this task, and runs the command in it. The namespace and all its mounts end with
# its last process, however that ends. Root gets its own PID namespace and /proc, no disk, and only the capabilities that are named.
# --isolated: also no network, no device and no other process, for every user.
# shellcheck source-path=SCRIPTDIR
set -euo pipefail

source "${BASH_SOURCE[0]%/*}/../lib/clock.sh"
source "${BASH_SOURCE[0]%/*}/../lib/log.sh"
source "${BASH_SOURCE[0]%/*}/../lib/failures.sh"
source "${BASH_SOURCE[0]%/*}/../lib/image_mount.sh"
source "${BASH_SOURCE[0]%/*}/../lib/orphans.sh"

# Slurm signals every process of a step. This script and bwrap's own monitor must outlive a TERM that is meant for the ranks.
trap '' TERM USR1 USR2 INT HUP

parse() {
    image="" workdir="/" writable="" remap_root="" entered="" real_ids="" isolated=""
    keep_env=() capabilities=() sources=() targets=() modes=()
    while (($#)); do
        case "$1" in
            --entered) entered=1 ;;
            --entered=*) entered=1 real_ids="${1#*=}" ;;
            --image=*) image="${1#*=}" ;;
            --workdir=*) workdir="${1#*=}" ;;
            --writable) writable=1 ;;
            --remap-root) remap_root=1 ;;
            --isolated) isolated=1 ;;
            --capability=*) capabilities+=("${1#*=}") ;;
            --keep-env=*) keep_env+=("${1#*=}") ;;
            --mount)
                sources+=("$2") targets+=("$3") modes+=("$4")
                shift 3
                ;;
            --)
                shift
                break
                ;;
            *)
                log::error "bubblewrap.sh: unknown option $1"
                exit 2
                ;;
        esac
        shift
    done
    command=("$@")
}

fail() {
    log::error "$*"
    exit 125
}

# Chooses an existing folder to build the root under, one that no mount comes from. So nothing is created on the node.
choose_base() {
    local candidate source
    for candidate in /mnt /media /srv /opt; do
        [[ -d "${candidate}" ]] || continue
        for source in "${image}" "${sources[@]}"; do
            [[ "$(realpath -m -- "${source}")/" == "${candidate}/"* ]] && continue 2
        done
        base="${candidate}"
        return 0
    done
    fail "no empty folder among /mnt /media /srv /opt to mount the image under"
}

mount_image() {
    image_mount::read_ahead "${BASH_SOURCE[0]%/bin/*}" "${image}"
    if [[ -z "${real_ids}" ]]; then
        image_mount::by_kernel "${image}" "${base}/lower" || fail "cannot mount ${image}: is it a squashfs image?"
        return 0
    fi
    # Without real root the kernel mounts no block device.
    image_mount::choose_fuse || fail "no squashfuse on this node; install it, or use the pyxis or enroot runtime"
    "${image_mount_bound[@]}" "${image_mount_fuse[@]}" -f "${image}" "${base}/lower" </dev/null >&2 &
    squashfuse_pid=$!
    local -i tries
    for ((tries = 0; tries < 100; tries++)); do
        mountpoint -q "${base}/lower" && return 0
        kill -0 "${squashfuse_pid}" 2>/dev/null || break
        sleep 0.05
    done
    fail "squashfuse could not mount ${image}; is /dev/fuse writable for this user?"
}

# Makes the mount points that the image lacks, in an overlay whose upper layer is a tmpfs. The image itself is never written.
build_root() {
    mount -t tmpfs -o mode=0755 tmpfs "${base}"
    mkdir "${base}"/{lower,upper,work,root}
    mount_image
    mount -t overlay -o "lowerdir=${base}/lower,upperdir=${base}/upper,workdir=${base}/work" overlay "${base}/root" \
        || fail "cannot lay a writable layer over ${image}"
    local -i i
    for ((i = 0; i < ${#sources[@]}; i++)); do
        make_mount_point "${sources[i]}" "${base}/root${targets[i]}"
    done
    local name
    for name in dev proc sys tmp run; do
        mkdir -p -- "${base}/root/${name}"
    done
    for name in hosts resolv.conf hostname; do
        # An image may hold a symbolic link here, which would point out of the root.
        [[ -e "/etc/${name}" ]] || continue
        rm -f -- "${base}/root/etc/${name}"
        mkdir -p -- "${base}/root/etc"
        : >"${base}/root/etc/${name}"
        etc_binds+=(--ro-bind "/etc/${name}" "/etc/${name}")
    done
}

make_mount_point() {
    local -r source="$1" target="$2"
    if [[ "${source}" == tmpfs || -d "${source}" ]]; then
        mkdir -p -- "${target}"
    elif [[ -e "${source}" ]]; then
        mkdir -p -- "$(dirname -- "${target}")"
        [[ -e "${target}" ]] || : >"${target}"
    else
        fail "mount source ${source} does not exist on this node"
    fi
}

# Applies the image's own environment as Enroot does: NAME=VALUE lines win over the host's, except for the names to keep.
image_environment() {
    local line name value kept
    local -r quoted="^[\\\"'](.*)[\\\"'][[:space:]]*\$"
    [[ -r "${base}/root/etc/environment" ]] || return 0
    while IFS= read -r line || [[ -n "${line}" ]]; do
        name="${line%%=*}"
        [[ "${line}" == *=* && "${name}" =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]] || continue
        for kept in "${keep_env[@]}"; do
            [[ "${kept}" == "${name}" ]] && continue 2
        done
        value="${line#*=}"
        # Enroot removes a pair of quotes from a value, before its hooks and after them. A backslash counts as a quote.
        for _ in before after; do
            if [[ "${value}" =~ ${quoted} ]]; then
                value="${BASH_REMATCH[1]}"
            fi
        done
        environment+=(--setenv "${name}" "${value}")
    done <"${base}/root/etc/environment"
}

# Adds devices, processes, network and capabilities to the options of bwrap.
contain() {
    local device capability
    if [[ -n "${isolated}" ]]; then
        arguments+=(--unshare-net --unshare-ipc --dev /dev)
    else
        arguments+=(--dev-bind /dev /dev)
    fi
    if [[ -n "${real_ids}" && -z "${isolated}" ]]; then
        # Ranks of one user must see each other: CUDA shares memory only between the processes of one PID namespace.
        arguments+=(--dev-bind /proc /proc)
        return 0
    fi
    # Through the host's /proc, root could reach every file of the host.
    arguments+=(--cap-drop ALL)
    # Inside a container whose own /proc is masked, only root may mount another one.
    if [[ -z "${real_ids}" ]] || bwrap --unshare-user --unshare-pid --ro-bind / / --proc /proc -- /bin/true 2>/dev/null; then
        arguments+=(--unshare-pid --proc /proc)
    else
        arguments+=(--dev-bind /proc /proc)
    fi
    [[ -z "${real_ids}" ]] || return 0
    for capability in "${capabilities[@]}"; do
        arguments+=(--cap-add "${capability}")
    done
    if [[ -n "${isolated}" ]]; then
        # Root writes into the mounted folders, whoever owns them.
        arguments+=(--cap-add CAP_DAC_OVERRIDE)
        return 0
    fi
    # Root owns the disks, and needs no capability to read them. So hide them.
    while IFS= read -r -d '' device; do
        arguments+=(--dev-bind /dev/null "${device}")
    done < <(find /dev -xdev -type b -print0)
    orphans::watch_container "${BASH_SOURCE[0]%/bin/*}"
}

# protect_run SOURCE TARGET: what the node itself runs of the run folder is read-only in the container. Otherwise a program there
# could change what the next start runs outside, as the user who owns the run.
protect_run() {
    local name
    [[ "$1" -ef "${BASH_SOURCE[0]%/bin/*}" ]] || return 0
    for name in bin lib batch.sh link.sh .notify; do
        [[ ! -e "$1/${name}" ]] || arguments+=(--ro-bind "$1/${name}" "$2/${name}")
    done
}

enter() {
    local -a arguments=() etc_binds=() environment=()
    local -i i
    build_root
    image_environment
    arguments=(--die-with-parent)
    if [[ -n "${writable}" ]]; then
        arguments+=(--bind "${base}/root" /)
    else
        arguments+=(--ro-bind "${base}/root" /)
    fi
    contain
    arguments+=(--ro-bind /sys /sys --tmpfs /tmp --tmpfs /run "${etc_binds[@]}")
    for ((i = 0; i < ${#sources[@]}; i++)); do
        if [[ "${sources[i]}" == tmpfs ]]; then
            arguments+=(--tmpfs "${targets[i]}")
        elif [[ "${modes[i]}" == ro ]]; then
            arguments+=(--ro-bind "${sources[i]}" "${targets[i]}")
        else
            arguments+=(--bind "${sources[i]}" "${targets[i]}")
            protect_run "${sources[i]}" "${targets[i]}"
        fi
    done
    if [[ -z "${remap_root}" && -n "${real_ids}" ]]; then
        arguments+=(--unshare-user --uid "${real_ids%:*}" --gid "${real_ids#*:}")
    fi
    arguments+=(--chdir "${workdir}" "${environment[@]}")
    run bwrap "${arguments[@]}" -- "${command[@]}"
}

# With the kernel's mount, the command replaces this script. With squashfuse the script stays, and ends squashfuse after it.
run() {
    if [[ -z "${squashfuse_pid}" ]]; then
        exec "$@"
    fi
    local -i code=0
    "$@" || code=$?
    kill -KILL "${squashfuse_pid}" 2>/dev/null
    exit "${code}"
}

# Mounts the folder that `srun --mpi=pmix` makes for the step's ranks, if it names one.
mount_pmix() {
    local -r folder="${PMIX_SERVER_TMPDIR:-}"
    if [[ -d "${folder}" ]]; then
        sources+=("${folder}")
        targets+=("${folder}")
        modes+=(rw)
    fi
}

main() {
    local squashfuse_pid=""
    parse "$@"
    mount_pmix
    [[ -r "${image}" ]] || fail "image ${image} is not readable on this node"
    command -v bwrap >/dev/null || fail "no bubblewrap (bwrap) on this node; install it, or use the pyxis or enroot runtime"
    if [[ -z "${entered}" ]]; then
        if ((EUID == 0)); then
            exec unshare --mount --propagation private -- "$0" --entered "$@"
        fi
        exec unshare --user --map-root-user --mount --propagation private -- "$0" --entered="${EUID}:$(id -g)" "$@"
    fi
    choose_base
    enter
}

main "$@"
