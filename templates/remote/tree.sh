# shellcheck shell=sh
# Sends the snapshot TREE: its listing, and its files by their paths.
main() {
    if cd -- "$RUNS/.snapshots-$KIT_UID/trees/$TREE" 2>/dev/null && [ -f listing ]; then
        section tree 0 there
        printf 'end\n'
        tar --create --file=- --hard-dereference --format=gnu -- listing files 2>/dev/null
    else
        section tree 0 ''
        printf 'end\n'
    fi
}
