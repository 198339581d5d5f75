# shellcheck shell=sh
# Tells what the cluster already has of a run's needs: the snapshot TREE, and the images that kit_argv prints, `SHA256 SIZE` each.
main() {
    [ "$TREE" = "" ] || answer tree tree
    answer images images
    printf 'end\n'
}

tree() {
    store="$RUNS/.snapshots-$KIT_UID"
    folder="$store/trees/$TREE"
    kit_is_own "$store" && [ -f "$folder/listing" ] && [ ! -e "$folder/damaged" ] && touch -- "$folder" && printf 'there\n'
    return 0
}

# Prints an image's inode, size and time, by which its digest is remembered; else the size of the part that has arrived.
images() {
    kit_argv | while read -r sha; do
        path="$STORE/sha256/$sha.sqsh"
        part="$STORE/tmp/ssh-$KIT_UID-$sha/part"
        if [ -f "$path" ]; then
            printf '%s there %s\n' "$sha" "$(stat -L -c '%i %s %Y' -- "$path")"
        elif kit_is_own "${part%/*}" && [ -f "$part" ]; then
            printf '%s part %s\n' "$sha" "$(stat -c %s -- "$part")"
        else
            printf '%s none\n' "$sha"
        fi
    done
}
