#!/usr/bin/env bash
# Run a command in another root file system, in new mount and PID namespaces:
#
#   unshare --mount --pid --fork --kill-child --propagation=private bash in_root.sh ROOT REPO BOUND… -- COMMAND…
#
# ROOT stays as it is: what is written goes to a tmpfs that ends with the namespaces. REPO and every BOUND folder are seen under their
# own paths. pivot_root and not chroot: in a chroot, which is not a mount point, unshare(1) could not change the propagation of mounts.
set -euo pipefail

root=$1
repo=$2
shift
bound=()
while [[ $1 != -- ]]; do
    bound+=("$1")
    shift
done
shift

# Any folder would do: only this namespace sees what is mounted here.
mount -t tmpfs -o mode=755 tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/new
mount -t overlay -o "lowerdir=${root},upperdir=/mnt/upper,workdir=/mnt/work" overlay /mnt/new
readonly new=/mnt/new

mount --rbind /dev "${new}/dev"
mount --rbind /sys "${new}/sys"
mount -t proc proc "${new}/proc"
mount -t tmpfs -o mode=1777 tmpfs "${new}/tmp"
mount -t tmpfs -o mode=755 tmpfs "${new}/run"
# All processes of the machine, which others use, too: what they have mounted is not a leak of a test (tests/cluster/lab.py).
mkdir "${new}/run/machine-proc"
mount --rbind /proc "${new}/run/machine-proc"
for file in /etc/hosts /etc/resolv.conf; do
    touch "${new}${file}"
    mount --bind "${file}" "${new}${file}"
done
for folder in "${bound[@]}"; do
    mkdir -p "${new}${folder}"
    mount --rbind "${folder}" "${new}${folder}"
done

mkdir "${new}/.old"
cd "${new}"
pivot_root . .old
umount --lazy /.old
rmdir /.old
cd "${repo}"
# Bash stays the first process, which gets the orphans of this namespace, and waits for them: pytest would leave them as zombies, and a
# test or Slurm would take them for processes that still run.
"$@"
