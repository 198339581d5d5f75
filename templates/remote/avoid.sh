# shellcheck shell=sh
# Makes submits avoid NODE for a day: records it with REASON in the folder AVOID next to the runs. This user's records that are older
# than a day are removed.
main() {
    answer avoid avoid
    printf 'end\n'
}

avoid() {
    mkdir -p -- "$RUNS/$AVOID" && cd -- "$RUNS/$AVOID" || return
    find . -mindepth 1 -maxdepth 1 -type f -uid "$KIT_UID" -mmin +1440 -exec rm -f -- {} +
    printf '%s\n' "$REASON" >"./.new-$$" && mv -f -- "./.new-$$" "./$NODE"
}
