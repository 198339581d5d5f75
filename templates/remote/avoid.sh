# shellcheck shell=sh
# Makes submits avoid NODE for a day: records it with REASON in the folder AVOID next to the runs. This user's records that are older
# than a day are removed.
main() {
    answer avoid avoid
    printf 'end\n'
}

avoid() {
    mkdir -p -- "$RUNS" && kit_enter "$RUNS/$AVOID" || return
    find . -mindepth 1 -maxdepth 1 -type f -uid "$KIT_UID" -mmin +1440 -exec rm -f -- {} +
    new=$(mktemp ./.new-XXXXXXXX) || return
    { printf '%s\n' "$REASON" >"$new" && chmod 644 -- "$new" && mv -fT -- "$new" "./$NODE"; } || { rm -f -- "$new"; return 1; }
}
