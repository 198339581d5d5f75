# shellcheck shell=sh
# Sends the files that commands read of one run, or of all points of a sweep: RUN, relative to RUNS. Never sends its checkpoints,
# workspace or secrets.
main() {
    kit_environment
    [ "$JOBS" = "" ] || answer accounted sacct_of
    [ "$QUEUE" = "" ] || answer queue squeue --noheader --array --states=all "--user=$KIT_UID" '--format=kit|%F|%K|%T|%N|%M|%r'
    if cd -- "$RUNS" 2>/dev/null && [ -d "./$RUN" ]; then
        [ "$RELAY" = "" ] || section relay 0 "$(kit_relay "./$RUN")"
        send_changes "$(changes files)"
    else
        head -c "$KNOWN" >/dev/null
        section changes 0 ''
        printf 'end\n'
    fi
}

sacct_of() {
    SLURM_TIME_FORMAT=%s
    export SLURM_TIME_FORMAT
    kit_argv
}

# Lists the files. Logs may be links to where the job wants them. Other large files are the program's own. WHOLE: also the run's
# programs. In a run that others can write, a link counts only if who made it owns the file.
files() {
    programs='./*/bin|./*/code'
    [ "$WHOLE" = "" ] || programs=''
    follow=-P
    ! kit_is_own "./$RUN" || follow=-L
    # shellcheck disable=SC2016 # for the sh of find
    target='find -L "$1" -maxdepth 0 -type f -uid "$(stat -c %u -- "$1")" -printf "%i %s %T@ %p\n"'
    find "$follow" "./$RUN" -mindepth 1 -maxdepth 7 \
        \( -name '.*' -o -name '*
*' -o -path "./$RUN/checkpoints" -o -path "./$RUN/workspace*" -o -path "./$RUN/points/*/checkpoints" -o -path "./$RUN/points/*/workspace*" \
        -o -path "./$RUN/arrays" -o -path "${programs%|*}" -o -path "${programs#*|}" -o -name 'latest_*' \) -prune \
        -o \( -path "./$RUN/logs/*" -o -path "./$RUN/points/*/logs/*" -o -name '*.jsonl' -o -type f -size -4096k \) \
        \( -type f -printf "%i %s %T@ %p\n" -o -type l -exec sh -c "$target" - {} \; \) 2>/dev/null \
        | sed 's|^\([0-9]* [0-9]* [0-9.]* \)\./|\1|'
}
