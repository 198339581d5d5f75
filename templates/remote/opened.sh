# shellcheck shell=sh
# Copies the snapshot TREE as the workspace of the run RUN, for a shell, which has no batch script to do it.
main() {
    answer opened opened
    printf 'end\n'
}

opened() {
    [ -n "$TREE" ] || return 0
    cd -- "$RUNS/$RUN" || return
    cp --recursive --no-dereference --reflink=auto --preserve=mode,timestamps -- "$TREE/files" workspace.partial || return
    chmod --recursive u+w -- workspace.partial && chmod 0700 -- workspace.partial || return
    [ ! -d workspace ] || rmdir -- workspace || return
    mv -T -- workspace.partial workspace
}
