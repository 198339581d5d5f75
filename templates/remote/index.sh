# shellcheck shell=sh
# Answers the first question of every command: user and folders, the user's jobs, and the record of each run that changed since the
# last time.
main() {
    kit_environment
    answer facts facts
    if [ "$PLAN" = 1 ]; then
        answer version sbatch --version
        answer pyxis srun --help
        answer avoid avoided
    fi
    answer queue squeue --noheader --array --states=all "--user=$KIT_UID" '--format=kit|%F|%K|%T|%N|%M|%r'
    answer keys squeue --noheader --states=all "--user=$KIT_UID" '--format=kit|%F|%o'
    if cd -- "$RUNS" 2>/dev/null; then
        send_changes "$(changes records)"
    else
        head -c "$KNOWN" >/dev/null
        section changes 0 "$([ ! -e "$RUNS" ] || echo closed)"
        printf 'end\n'
    fi
}

# Lists the files of runs and sweep points that `kit runs` reads, below RUNS. Points without a folder are in their arrays' lists.
records() {
    find . -mindepth 1 -maxdepth 5 \
        \( -name '.*' -o -name '*
*' -o -name checkpoints -o -name workspace -o -name code -o -name logs -o -name monitor -o -name bin -o -name configs \) -prune \
        -o -type f \( -name manifest.json -o -name sweep.json -o -path '*/state/events.jsonl' -o -path '*/state/cancelled' \
        -o -path './*/arrays/*/points' -o -path './*/arrays/*/job' -o -path './*/cancelled/*' \) \
        -printf '%i %s %T@ %P\n'
}

# Prints nodes that failed a preflight in the last day: `- NAME MTIME REASON`, or USER in place of `-` for the record of another user
# than this one and root, which a submit does not obey.
avoided() {
    [ -d "$RUNS/$AVOID" ] && [ ! -L "$RUNS/$AVOID" ] || return 0
    cd -- "$RUNS/$AVOID" || return 0
    find . -mindepth 1 -maxdepth 1 -type f -name '[A-Za-z0-9]*' ! -name '*[!A-Za-z0-9._-]*' -mmin -1440 \
        \( -uid 0 -printf '-' -o -uid "$KIT_UID" -printf '-' -o -printf '%u' \) -printf ' %f %T@ ' -exec head -n 1 -- {} \;
}
