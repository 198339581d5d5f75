#!/usr/bin/env bash
# First process of a virtual node: makes the node's own view of the machine, then adopts orphans until it is killed,
# and everything in the node with it. Runs in new mount, UTS, IPC, network and PID namespaces.
#
#   node-init.sh FOLDER NODE [ENROOT]
set -euo pipefail

readonly folder=$1 node=$2 enroot=${3-}
readonly own=${folder}/nodes/${node} view=${folder}/node

printf '%s\n' "${node}" >/proc/sys/kernel/hostname
mount --bind "${folder}/hosts" /etc/hosts
if [[ -e /etc/hostname ]]; then
    mount --bind "${own}/hostname" /etc/hostname
fi
mount -t tmpfs -o mode=1777 tmpfs /dev/shm

# The same path shows every node a folder of its own.
mount --bind "${own}" "${view}"
mount -t tmpfs -o mode=755 tmpfs "${view}/run"

if [[ -n ${enroot} ]]; then
    mkdir -p "${view}/run/pyxis"
    mkdir -m 1777 "${view}/run/enroot"
    # The real Enroot moves aside; what all callers find in its place is the script that keeps nodes apart.
    mount --bind "${enroot}" "${view}/bin/enroot"
    mount --bind "${folder}/enroot" "${enroot}"
    # Distributions with udev give everyone access to FUSE; Enroot and squashfuse need it.
    if [[ -c /dev/fuse && $(stat --format=%a /dev/fuse) != *66 ]]; then
        mknod -m 666 "${own}/fuse" c 10 229
        mount --bind "${own}/fuse" /dev/fuse
    fi
fi

touch "${own}/ready"
while :; do
    sleep infinity &
    wait "$!" || true
done
