# shellcheck shell=sh
# Prints which objects the user's snapshots lack, of those whose names come in, one per line.
main() {
    objects="$RUNS/.snapshots-$KIT_UID/objects"
    out=$(while read -r name; do
        [ -f "$objects/${name%"${name#??}"}/$name" ] || printf '%s\n' "$name"
    done)
    section lacking 0 "$out"
    printf 'end\n'
}
