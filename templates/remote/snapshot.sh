# shellcheck shell=sh
# Takes a snapshot: OBJECTS bytes of an archive of files named by their digests, then TREE_BYTES of an archive of links to them,
# which is the tree TREE. A file gets its name only after it was checked, so every named file is complete.
main() {
    mkdir -p -- "$RUNS" || { failed; return; }
    # Runs are readable by others, but a user's snapshots are not.
    umask 077
    store="$RUNS/.snapshots-$KIT_UID"
    # shellcheck disable=SC2153 # a constant that the caller sets
    partial="./trees/$PARTIAL"
    kit_enter_own "$store" || { failed; return; }
    mkdir -p -- objects trees index || { failed; return; }
    find . -mindepth 1 -maxdepth 2 -name '.partial-ssh-*' -mmin +60 -exec rm -rf -- {} + 2>/dev/null
    mkdir -- "$partial" || { failed; return; }
    if take; then code=0; else code=1; fi
    [ "$code" -eq 0 ] || kit_room "$store"
    rm -rf -- "$partial"
    section result "$code" ''
    printf 'end\n'
}

failed() {
    section result 1 ''
    printf 'end\n'
}

take() {
    head -c "$OBJECTS" | tar --extract --file=- --no-same-owner -C "$partial" || return 1
    find "$partial" -mindepth 1 -maxdepth 1 -type f ! -name '.*' -printf '%f\n' | sort >"$partial/.names"
    sed 's/^\([0-9a-f]*\)\(.*\)$/\1  \1\2/' "$partial/.names" >"$partial/.sums"
    [ ! -s "$partial/.sums" ] || (cd -- "$partial" && sha256sum --check --quiet -- .sums >&2) || return 1
    while read -r name; do
        folder="objects/${name%"${name#??}"}"
        mkdir -p -- "$folder" && mv -f -- "$partial/$name" "$folder/$name" || return 1
    done <"$partial/.names"
    head -c "$TREE_BYTES" >"$partial/.tree" && [ "$(sha256sum <"$partial/.tree")" = "$TREE_SUM  -" ] || return 1
    mkdir -- "$partial/made" || return 1
    # From here on, its links name objects.
    tar --extract --file="$partial/.tree" --no-same-owner || return 1
    [ "$(sha256sum <"$partial/made/listing")" = "$TREE  -" ] || return 1
    [ ! -e "trees/$TREE" ] || [ -f "trees/$TREE/listing" ] || rm -rf -- "trees/$TREE"
    mv -T -- "$partial/made" "trees/$TREE" 2>/dev/null || [ -f "trees/$TREE/listing" ]
}
