#!/usr/bin/env bash
# First process of a virtual node. It makes the node's own view of the machine, and then adopts orphaned processes until it is
# killed, which ends everything in the node. It runs in new mount, UTS, IPC, network and PID namespaces.
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

# At this path, each node sees its own folder.
mount --bind "${own}" "${view}"
mount -t tmpfs -o mode=755 tmpfs "${view}/run"

if [[ -n ${enroot} ]]; then
    mkdir -p "${view}/run/pyxis"
    mkdir -m 1777 "${view}/run/enroot"
    # Move the real Enroot aside. In its place, callers find the script that gives each node its own state.
    mount --bind "${enroot}" "${view}/bin/enroot"
    mount --bind "${folder}/enroot" "${enroot}"
    # Enroot and squashfuse need FUSE. Distributions with udev give all users access to it.
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
