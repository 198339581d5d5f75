#!/bin/bash
# hidden.sh COMMAND…: runs a command on this machine as it would be without Pyxis and Enroot. What the kit looks for is hidden in a
# mount namespace that ends with the command: the plugin (the folders of kit/slurm/embedded/pyxis.py), the programs of Enroot on PATH,
# and files of plugstack.conf that name the plugin. The user, the folder and the environment are the caller's; so is the exit code.
# Where there is nothing to hide it needs no root.
set -euo pipefail
shopt -s nullglob

if (($# == 0)); then
    printf 'usage: %s COMMAND…\n' "$0" >&2
    exit 2
fi

files=()
for folder in /usr/lib*/slurm /usr/lib/*/slurm* /usr/local/lib/slurm /opt/pyxis*/lib; do
    files+=("${folder}"/spank_pyxis.so*)
done
[[ ! -f "${KIT_PYXIS_PLUGIN:-}" ]] || files+=("${KIT_PYXIS_PLUGIN}")
IFS=: read -ra folders <<<"${PATH}:/usr/local/sbin:/usr/sbin:/sbin"
for folder in "${folders[@]}"; do
    files+=("${folder:-.}"/enroot*)
done
for conf in /etc/slurm*/plugstack.conf /etc/slurm*/plugstack.conf.d/*; do
    ! grep -q pyxis "${conf}" 2>/dev/null || files+=("${conf}")
done

# A link is followed, since a mount is. /usr/lib and /lib are one folder: each file once.
if ((${#files[@]})); then
    mapfile -d '' -t files < <(realpath --zero -- "${files[@]}" | sort --zero-terminated --unique)
fi
((${#files[@]})) || exec "$@"

as_root=()
((EUID == 0)) || as_root=(sudo --preserve-env)
# What hides a file is the kind of /dev/null: it cannot be executed, and it is no regular file.
# shellcheck disable=SC2016 # the words are the inner shell's
exec "${as_root[@]}" unshare --mount --propagation slave /bin/bash -c '
    set -euo pipefail
    PATH="$1" user="$2" group="$3" count="$4"
    shift 4
    for file in "${@:1:count}"; do
        mount --bind /dev/null "${file}"
    done
    shift "${count}"
    ((user)) || exec "$@"
    exec setpriv --reuid "${user}" --regid "${group}" --init-groups "$@"
' hidden "${PATH}" "${EUID}" "$(id -g)" "${#files[@]}" "${files[@]}" "$@"
