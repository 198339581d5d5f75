# shellcheck shell=sh
# Cancels jobs. kit_argv prints lines `HOW JOB RUN`. HOW is now: Slurm ends the job; gently: its batch script is asked; waiting: it
# has not started.
main() {
    kit_environment
    cd -- "$RUNS" || return
    lines=$(kit_argv)
    at_once=$(printf '%s\n' "$lines" | sed -n 's/^\(now\|waiting\) \([0-9_]*\) .*/\2/p')
    gently=$(printf '%s\n' "$lines" | sed -n 's/^gently \([0-9_]*\) .*/\1/p')
    # shellcheck disable=SC2086 # numbers, a word each
    [ -z "$at_once" ] || answer at_once scancel $at_once
    # Once for each `kit cancel`, however often its connection breaks.
    for run in $(printf '%s\n' "$lines" | sed -n 's/^gently [0-9_]* //p' | head -n 1); do
        mkdir -- "./$run/state/$NONCE" 2>/dev/null || gently=""
    done
    # shellcheck disable=SC2086
    [ -z "$gently" ] || answer gently scancel --batch --signal=TERM $gently
    printf '%s\n' "$lines" | while read -r how _ run; do
        if [ ! -d "./$run" ] && [ "$run" != "${run%/points/*}" ]; then
            # A point of a sweep whose folder is not made yet gets the mark when it is made.
            mkdir -p -- "./${run%/points/*}/cancelled"
            printf '%s\n' "$KIT_USER" >"./${run%/points/*}/cancelled/${run##*/}"
            continue
        fi
        if [ "$how" = waiting ]; then
            rm -f -- "./$run/.secrets"
            : >"./$run/state/cancelled"
        fi
        printf '%s\n' "$KIT_USER" >"./$run/state/cancelled-by"
    done
    printf 'end\n'
}
