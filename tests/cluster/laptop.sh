#!/bin/bash
# First process of the test's laptop: it takes away what a laptop has not, and then keeps the namespaces alive. It runs as root in new
# mount and network namespaces.
#
#   laptop.sh FOLDER [KEPT …]
#
# FOLDER: the laptop's own. KEPT: folders that it needs besides, such as this repository and its Python.
set -euo pipefail

readonly folder=$1
shift

# Programs of Slurm, of MUNGE and of container engines. The batch system's own names, whatever package they came in.
readonly programs=(
    'sacct*' salloc sattach sbatch sbcast scancel scontrol scrontab 'scrun*' sdiag sgather sinfo 'slurm*' sprio squeue sreport srun sshare
    sstat strigger sview 'munge*' unmunge remunge 'docker*' 'containerd*' 'podman*' 'buildah*' 'skopeo*' 'enroot*' nerdctl
)
# Folders with their configuration, state and sockets; and all homes, run folders, stores and clusters of this machine.
readonly configs=(/etc/slurm* /etc/munge /etc/docker /etc/containers /etc/enroot /etc/pyxis /var/lib/slurm* /var/lib/munge /var/lib/docker
    /var/lib/containers /var/spool/slurm* /var/log/slurm* /usr/lib/*/slurm* /usr/local/lib/slurm)

# Everything that is made here for the view lies in a tmpfs, which is hidden at the end.
readonly view=/mnt
mount -t tmpfs -o mode=755 tmpfs "${view}"

hidden=(/tmp /home /root /run)
for path in "${HOME-}" "${XDG_DATA_HOME-}"; do
    [[ ! -d ${path} || ${path} == / ]] || hidden+=("${path}")
done
kept=("${folder}" "$@")
# What it needs may lie in a folder that other users may not enter.
for path in "${kept[@]}"; do
    while [[ ${path} != / ]]; do
        path=$(dirname "${path}")
        [[ $(stat --format=%a "${path}") == *[1357] ]] || hidden+=("${path}")
    done
done
for index in "${!kept[@]}"; do
    mkdir "${view}/kept-${index}"
    mount --rbind "${kept[index]}" "${view}/kept-${index}"
done
# From the root downwards: a folder below a hidden one is hidden with it.
mapfile -t hidden < <(printf '%s\n' "${hidden[@]}" | sort -u)
for path in "${hidden[@]}"; do
    [[ ! -d ${path} ]] || mount -t tmpfs -o mode=755 tmpfs "${path}"
done
chmod 1777 /tmp
for index in "${!kept[@]}"; do
    mkdir -p "${kept[index]}"
    mount --rbind "${view}/kept-${index}" "${kept[index]}"
done

for path in "${configs[@]}"; do
    [[ ! -d ${path} ]] || mount -t tmpfs -o mode=755 tmpfs "${path}"
done
for place in /usr/bin /usr/sbin /usr/local/bin /usr/local/sbin /bin /sbin; do
    [[ ! -L ${place} ]] || continue
    without=${view}/without${place//\//-}
    mkdir "${without}"
    for name in "${programs[@]}"; do
        while IFS= read -r path; do
            mknod "${without}/${path##*/}" c 0 0 # overlayfs: no such file
        done < <(compgen -G "${place}/${name}" || true)
    done
    mount -t overlay -o "lowerdir=${without}:${place}" overlay "${place}"
done
umount --lazy "${view}"
rm -rf /run/mount # mount's own notes
ip link set lo up

touch "${folder}/ready"
exec sleep infinity
