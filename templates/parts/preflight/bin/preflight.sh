#!/bin/bash
# preflight.sh NAME=VALUE… [-- PROBE WORD…]: one task per node, before the ranks, outside the container. Reports all that this node
# lacks, at once. PROBE starts the container once, and writes its own report (probe.sh).
# shellcheck source-path=SCRIPTDIR
set -uo pipefail

# Before the first line that an older bash does not know: its report has the form of the others.
if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)); then
    for word; do
        [[ "${word}" != run=* ]] || printf '%s: bash %s is too old here: the kit needs bash 4.4 or newer\n' "${SLURMD_NODENAME:-$(uname -n)}" \
            "${BASH_VERSION}" | tee -- "${word#run=}/state/preflight/${SLURMD_NODENAME:-$(uname -n)}.preflight.failed"
    done
    exit 1
fi

source "${BASH_SOURCE[0]%/*}/../lib/clock.sh"
source "${BASH_SOURCE[0]%/*}/../lib/log.sh"
source "${BASH_SOURCE[0]%/*}/../lib/trust.sh"

node="${SLURMD_NODENAME:-$(uname -n)}"
faults=()

fault() {
    faults+=("$1")
}

read_options() {
    images=() sizes=() digests=() cache="" run="" verify="" free_kb=0 shm_kb=0 nofile=0 memlock=any skew="" gpus=0 userns=0
    sources=() interfaces=() probe=()
    local word
    while (($#)); do
        word="$1"
        shift
        case "${word}" in
            --)
                probe=("$@")
                break
                ;;
            source=*) sources+=("${word#*=}") ;;
            interface=*) interfaces+=("${word#*=}") ;;
            image=*) images+=("${word#*=}") sizes+=(0) digests+=("") ;;
            # size and sha256 belong to the image before them.
            size=*) sizes[-1]="${word#*=}" ;;
            sha256=*) digests[-1]="${word#*=}" ;;
            cache=* | run=* | verify=* | free_kb=* | shm_kb=* | nofile=* | memlock=* | skew=* | gpus=* | userns=*)
                printf -v "${word%%=*}" '%s' "${word#*=}"
                ;;
            *)
                log::error "preflight.sh: unknown option ${word}"
                exit 2
                ;;
        esac
    done
}

check_images() {
    local -i i
    for ((i = 0; i < ${#images[@]}; i++)); do
        check_image "${images[i]}" "${sizes[i]}" "${digests[i]}"
    done
}

check_image() {
    local -r image="$1" size="$2" sha256="$3"
    if [[ ! -r "${image}" ]]; then
        fault "image ${image} is not readable here; the image store must be on a file system that every node mounts"
        return 0
    fi
    local found
    found="$(stat --dereference --format=%s -- "${image}")"
    if ((size && found != size)); then
        fault "image ${image} has ${found} bytes here, and its lock says ${size}; build it again with 'kit build-image'"
    elif [[ -n "${sha256}" ]]; then
        [[ -z "${verify}" ]] || rm -f -- "${cache}/.verified"
        found="$(trust::digest "${image}" "${cache}/.verified")"
        [[ "${found}" == "${sha256}" ]] || fault "image ${image} has the digest ${found} here, and its lock says ${sha256}"
    fi
}

# Checks the cache folder and the images. The container probe starts when every node has written this report, and only from locked
# bytes.
check_first() {
    if ! trust::private_folder "${cache}"; then
        fault "cache folder: ${trust_problem}; set paths.cache of the cluster to a local folder of yours"
    elif [[ ! -w "${cache}" ]]; then
        fault "cache folder ${cache} cannot be written; set paths.cache of the cluster to a local folder of yours"
    else
        check_images
    fi
    ((${#faults[@]} == 0)) || : >"${run}/state/preflight/${node}.refused"
    : >"${run}/state/preflight/${node}.folders"
}

# The container mounts the cache folder, and must be of the locked bytes. So it starts after the first checks, beside the others.
start_probe() {
    probe_pid=""
    ((${#probe[@]} && ${#faults[@]} == 0)) || return 0
    "${probe[@]}" &
    probe_pid=$!
}

# Of each image, the node keeps what was compiled for it. What was not used for a month is removed: its image may be gone.
keep_compiled() {
    local -r folder="${cache}/compiled"
    local sha256
    [[ -O "${cache}" && ! -L "${cache}" && ! -L "${folder}" ]] || return 0
    for sha256 in "${digests[@]}"; do
        [[ -n "${sha256}" ]] || continue
        mkdir -p -- "${folder}/${sha256:0:12}" && touch -- "${folder}/${sha256:0:12}"
    done 2>/dev/null
    [[ ! -d "${folder}" ]] || find "${folder}" -mindepth 1 -maxdepth 1 -mtime +30 -exec rm -rf -- {} + 2>/dev/null
}

check_folders() {
    local path
    if [[ -d "${cache}" ]]; then
        check_space "${cache}"
    fi
    if [[ -w "${run}" ]]; then
        check_space "${run}"
    else
        fault "run folder ${run} is not writable here; set paths.runs of the cluster to a shared folder"
    fi
    for path in "${sources[@]}"; do
        [[ -e "${path}" ]] || fault "mount source ${path} does not exist here"
    done
}

check_space() {
    local available
    available="$(df --output=avail --block-size=1K -- "$1" | tail -n 1 | tr -d ' ')"
    ((available >= free_kb)) || fault "$1 has ${available} KB free, ${free_kb} are wanted (preflight.free_disk_gb)"
}

check_limits() {
    local value
    value="$(df --output=size --block-size=1K /dev/shm 2>/dev/null | tail -n 1 | tr -d ' ')"
    ((${value:-0} >= shm_kb)) || fault "/dev/shm has ${value:-0} KB, ${shm_kb} are wanted (preflight.shm_gb)"
    value="$(ulimit -H -n)"
    [[ "${value}" == unlimited ]] || ((value >= nofile)) || fault "ulimit -n is at most ${value}, ${nofile} are wanted (preflight.nofile, or the connections of a rank)"
    if [[ "${memlock}" == unlimited && "$(ulimit -l)" != unlimited ]]; then
        fault "ulimit -l is $(ulimit -l); RDMA cannot pin memory (set LimitMEMLOCK=infinity for slurmd)"
    fi
}

check_user_namespaces() {
    ((userns && EUID != 0)) || return 0
    local value
    value="$(cat /proc/sys/user/max_user_namespaces 2>/dev/null || echo 0)"
    ((value > 0)) || fault "user namespaces are off: sysctl user.max_user_namespaces is ${value}"
    if [[ "$(cat /proc/sys/kernel/apparmor_restrict_unprivileged_userns 2>/dev/null)" == 1 ]]; then
        fault "AppArmor keeps user namespaces from users: sysctl kernel.apparmor_restrict_unprivileged_userns is 1"
    fi
}

# NCCL_SOCKET_IFNAME takes prefixes (`eth`), exact names (`=eth0`) and exclusions (`^docker`), several separated by commas.
check_interfaces() {
    local list name path found
    local -ar there=(/sys/class/net/*)
    for list in "${interfaces[@]}"; do
        [[ "${list}" == ^* ]] && continue
        found=""
        local -a names
        IFS=, read -ra names <<<"${list#=}"
        for name in "${names[@]}"; do
            for path in /sys/class/net/"${name}"*; do
                [[ -e "${path}" ]] && [[ "${list}" != =* || "${path##*/}" == "${name}" ]] && found=1
            done
        done
        [[ -n "${found}" ]] || fault "no network interface ${list} here; there are: ${there[*]##*/}"
    done
}

# The file system of the run folder dates each write by its server's clock. That clock is the same for every node, however late this
# task was started.
check_clock() {
    [[ -n "${skew}" ]] || return 0
    local -r file="${run}/state/preflight/${node}.clock"
    local before after server
    clock::now before
    : >"${file}" || return 0
    server="$(stat --format=%.6Y -- "${file}")"
    clock::now after
    rm -f -- "${file}"
    local -i ahead=$((${before%.*} - ${server%.*})) behind=$((${server%.*} - ${after%.*}))
    local -i differs=$((ahead > behind ? ahead : behind))
    ((differs <= skew)) || fault "this node's clock differs by ${differs} s from that of the run folder's file system; at most ${skew} are allowed"
}

# A GPU that fell off the bus can hang nvidia-smi forever, so it gets ten seconds, then KILL.
gpu_query() {
    timeout --kill-after=1 10 nvidia-smi "$@" 2>/dev/null
}

# Checks count and health, where there is an nvidia-smi. A placeholder GPU has neither.
check_gpus() {
    ((gpus)) && command -v nvidia-smi >/dev/null || return 0
    local list line
    if ! list="$(gpu_query --list-gpus)"; then
        fault "nvidia-smi fails or gives no answer within 10 s: a GPU or its driver is stuck; drain this node"
        return 0
    fi
    local -i found
    found="$(grep -c '^GPU' <<<"${list}")"
    ((found >= gpus)) || fault "nvidia-smi lists ${found} GPUs, ${gpus} are wanted"
    while IFS= read -r line; do
        fault "GPU ${line%%,*}: uncorrected memory errors: ${line#*, }; reset or replace it"
    done < <(gpu_query --query-gpu=index,ecc.errors.uncorrected.volatile.total --format=csv,noheader,nounits \
        | awk -F ', ' '$2 ~ /^[0-9]+$/ && $2 > 0')
    found="$(gpu_query --query-gpu=retired_pages.pending --format=csv,noheader | grep -c '^Yes')"
    ((found == 0)) || fault "${found} GPUs have memory pages that wait to be retired; reset them"
    line="$(dmesg 2>/dev/null | grep 'NVRM: Xid' | tail -n 1)"
    [[ -z "${line}" ]] || log::info "the kernel reported GPU errors since boot, the last: ${line}"
}

main() {
    read_options "$@"
    check_first
    start_probe
    check_folders
    check_limits
    check_user_namespaces
    check_interfaces
    check_clock
    check_gpus
    ((${#faults[@]})) || keep_compiled
    local -r report="${run}/state/preflight/${node}.preflight"
    if ((${#faults[@]})); then
        printf '%s\n' "${faults[@]/#/${node}: }" | tee -- "${report}.failed"
    else
        : >"${report}.ok"
    fi
    [[ -z "${probe_pid}" ]] || wait "${probe_pid}" || return $?
    return $((${#faults[@]} > 0))
}

main "$@"
