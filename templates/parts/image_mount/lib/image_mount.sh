# shellcheck shell=bash
# Mounts a squashfs image. A FUSE mount answers each question in another process, so what matters is how many questions the kernel
# asks: squashfuse by itself lets it forget a file's pages at every open, and a file's name after a second.

# The image cannot change under a run, so the kernel may keep all that it has read.
readonly image_mount_cached=kernel_cache,entry_timeout=86400,attr_timeout=86400,negative_timeout=86400
image_mount_fuse=()
# What starts a program that ends with this process, however this process ends. util-linux before 2.33 (RHEL 8) has nothing for it:
# there, the program ends with Slurm's step.
image_mount_bound=()
! setpriv --help 2>/dev/null | grep -q -e --pdeathsig || image_mount_bound=(setpriv --pdeathsig KILL)

# image_mount::by_kernel IMAGE FOLDER: only root may do this.
image_mount::by_kernel() {
    mount -t squashfs -o loop,ro,nodev "$1" "$2"
}

# Sets image_mount_fuse to the program that mounts with the owners in the image. squashfuse_ll keeps all that it has read anyway, and
# looks files up by number instead of by path. Returns 1 where there is none.
image_mount::choose_fuse() {
    if command -v squashfuse_ll >/dev/null; then
        image_mount_fuse=(squashfuse_ll)
    else
        image_mount::use_cached
    fi
}

# Sets image_mount_fuse to squashfuse with the kernel's caches, which takes owners as options.
image_mount::use_cached() {
    command -v squashfuse >/dev/null || return 1
    image_mount_fuse=(squashfuse -o "${image_mount_cached}")
}

# image_mount::only_root_owns IMAGE: whether root owns every file in the image. Reads its table of owners: see sqshfile.py for the
# superblock.
image_mount::only_root_owns() {
    local count table block header owner
    read -r count < <(od -An -tu2 -j26 -N2 -- "$1") && ((count == 1)) || return 1
    read -r table < <(od -An -tu8 -j48 -N8 -- "$1") || return 1
    read -r block < <(od -An -tu8 -j"${table}" -N8 -- "$1") || return 1
    # The highest bit of a block's length: it is not compressed. So short a block never is.
    read -r header owner _ < <(od -An -tu2 -j"${block}" -N6 -- "$1") || return 1
    ((header == 0x8004 && owner == 0))
}

# image_mount::read_ahead RUN-DIR IMAGE: reads the part of the image that starts have used, in the background. One task of a node is
# enough. The reader ends with this process, or the one that it becomes.
image_mount::read_ahead() {
    ((${SLURM_LOCALID:-0} == 0)) && [[ -d "${1%/*}/.hot-pages" ]] || return 0
    [[ ! -x "$1/bin/read-ahead.sh" ]] || "${image_mount_bound[@]}" "$1/bin/read-ahead.sh" "$2" </dev/null &>/dev/null &
}
