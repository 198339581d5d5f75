# shellcheck shell=sh
# Which of the objects whose names come in, one a line, the user's snapshots lack.
main() {
    objects="$RUNS/.snapshots-$KIT_UID/objects"
    out=$(while read -r name; do
        [ -f "$objects/${name%"${name#??}"}/$name" ] || printf '%s\n' "$name"
    done)
    section lacking 0 "$out"
    printf 'end\n'
}
