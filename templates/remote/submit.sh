# shellcheck shell=sh
# Takes a folder, SIZE bytes of an archive, and submits its content: kit_argv is its sbatch. Without an archive, it finds out what
# became of a submit whose connection broke. However often it runs, and wherever it is cut off, it makes at most one job. KIND is
# one of: run: RUN is a new run folder; again: RUN has ended, and AGAIN, relative to it, holds the new manifest; array: array AGAIN
# of the sweep RUN; place: only the folder, nothing is submitted; over: the same into an existing folder. SCRIPT: the argument of
# sbatch, relative to RUN. LINKS: of a run, how many links of a chain follow its job. RIGHT: a folder in RUN; the process that makes it may submit. OLD: the earlier job, or 0.
UNDER_WAY='another submit of this run is under way, or was cut off'

main() {
    kit_environment
    mkdir -p -- "$RUNS" || { result failed; return; }
    cd -- "$RUNS" || { result failed; return; }
    keep_from_others
    find . -mindepth 1 -maxdepth 1 -name '.partial-ssh-*' -mmin +60 -exec rm -rf -- {} + 2>/dev/null
    if [ "$SIZE" -gt 0 ]; then
        partial=$(mktemp -d ./.partial-ssh-XXXXXX) || { result failed; return; }
        taken=$(take)
        rm -rf -- "$partial"
        [ -z "$taken" ] || { result "$taken"; return; }
    fi
    [ -d "./$RUN" ] || { result nothing; return; }
    case $KIND in
        place | over) result placed ;;
        again) if [ "$SIZE" -gt 0 ] || [ -e "./$RUN/$AGAIN" ] || [ -n "$(noted)" ]; then send; else result nothing; fi ;;
        *) send ;;
    esac
}

# Gives a folder of runs that others may write the sticky bit, if it is this user's. Without it, each of them could rename a waiting
# run, and put one of their own in its place. A group with the user's name is the one that many systems make for each user.
keep_from_others() {
    # shellcheck disable=SC2046 # a word each
    set -- $(stat -c '%u %A %G' .)
    [ "$1" = "$KIT_UID" ] || return 0
    case $2 in
        ????????w*) chmod +t . ;;
        ?????w*) [ "$3" = "$KIT_USER" ] || chmod +t . ;;
    esac
}

# result WORD [TEXT]: sends the outcome, and the job's number or the output of sbatch.
result() {
    [ "$1" != failed ] || kit_room "$RUNS"
    section result 0 "$1"
    section said 0 "${2:-}"
    printf 'end\n'
}

# Unpacks the archive. Prints the reason if that fails.
take() {
    # Only a complete archive is unpacked: the connection may have broken.
    head -c "$SIZE" >"$partial/sent" || { echo failed; return; }
    [ "$(sha256sum <"$partial/sent")" = "$SHA  -" ] || { echo cut; return; }
    case $KIND in again | over) over; return ;; esac
    [ ! -e "./$RUN" ] || return 0
    mkdir -- "$partial/run" || { echo failed; return; }
    # The umask does not count below a default ACL of the folder of runs: whoever it names could write the state of the run.
    ! command -v setfacl >/dev/null || setfacl --remove-all --remove-default -- "$partial/run" 2>/dev/null
    tar --extract --file="$partial/sent" --same-permissions --no-same-owner -C "$partial/run" || { echo failed; return; }
    chmod 755 -- "$partial/run"
    # Another try of the same submit may have been first.
    mv -T -- "$partial/run" "./$RUN" 2>/dev/null || [ -d "./$RUN" ] || echo failed
}

# Unpacks into an existing folder. What was already submitted is not changed.
over() {
    [ -d "./$RUN" ] || { echo nothing; return; }
    [ "$KIND" = over ] || [ ! -e "./$RUN/$RIGHT" ] || return 0
    tar --extract --file="$partial/sent" --same-permissions --no-same-owner -C "./$RUN" || echo failed
}

send() {
    number=$(noted)
    [ -n "$number" ] || number=$(in_queue)
    [ -z "$number" ] || { note; return; }
    # The right to submit is taken once, and never given back.
    if mkdir -- "./$RUN/$RIGHT" 2>/dev/null; then
        said=$(kit_argv 2>&1 </dev/null)
        code=$?
        number=$(job_in "$said")
        if [ "$code" -eq 0 ] && [ -n "$number" ]; then note; return; fi
        # A controller that answered too late may have accepted the job.
        tries=10
        if [ "$code" -ne 0 ] && ! slow "$said"; then tries=1; fi
    else
        tries=20
        said="$UNDER_WAY"
        code=0
    fi
    while [ "$tries" -gt 0 ]; do
        number=$(noted)
        [ -n "$number" ] || number=$(in_queue) || tries=0
        [ -z "$number" ] || { note; return; }
        tries=$((tries - 1))
        [ "$tries" -le 0 ] || sleep 1
    done
    if [ "$code" -eq 0 ] || slow "$said"; then
        result unknown "$said"
    else
        forget
        result refused "$said"
    fi
}

# Prints the job's number in the output of sbatch. A site may print lines of its own. Nothing for two different numbers: only the queue
# tells which job is this run's.
job_in() {
    printf '%s\n' "$1" | sed -n 's/^[[:blank:]]*\([1-9][0-9]*\)\(;[^[:blank:]]*\)\{0,1\}[[:blank:]]*$/\1/p' | sort -u \
        | awk '{ number = $1 } END { if (NR == 1) print number }'
}

# Submits the later links of a chain, once: each waits until all before it have failed. If one is not submitted, all are cancelled.
links() {
    if ! mkdir -- "./$RUN/state/linking" 2>/dev/null; then
        tries=20
        while [ ! -f "./$RUN/state/links" ] && [ "$tries" -gt 0 ]; do
            tries=$((tries - 1))
            sleep 1
        done
        [ ! -f "./$RUN/state/links" ] || return 0
        said="$UNDER_WAY"
        return 1
    fi
    jobs=$number
    last=$number
    for link in $(seq "$LINKS"); do
        after=--dependency=afternotok:$(printf '%s' "$jobs" | tr ' ' ':')
        said=$(sbatch --parsable --kill-on-invalid-dep=yes "$after" "$RUNS/$RUN/link.sh" 2>&1 </dev/null)
        last=$(job_in "$said")
        [ -n "$last" ] || last=$(link_in_queue "${jobs##* }")
        [ -n "$last" ] || break
        jobs="$jobs $last"
    done
    if [ -z "$last" ]; then
        for link in $(printf '%s\n' "$jobs" | tr ' ' '\n' | sort -rn); do scancel "$link" 2>/dev/null; done
        return 1
    fi
    printf '%s\n' "$jobs" | tr ' ' '\n' >"./$RUN/state/.links" && mv -f -- "./$RUN/state/.links" "./$RUN/state/links"
}

# link_in_queue JOB: the link that was submitted after this one, if sbatch's answer was lost.
link_in_queue() {
    slow "$said" || return 0
    for try in 1 2 3 4 5 6 7 8 9 10; do
        [ "$try" -eq 1 ] || sleep 1
        found=$(squeue --noheader --states=all "--user=$KIT_UID" '--format=kit|%F|%o' 2>/dev/null \
            | awk -F '|' -v "after=$1" -v "script=$RUNS/$RUN/link.sh" '$1 ~ /kit$/ && $2 + 0 > after + 0 && $3 == script { print $2; exit }')
        [ -z "$found" ] || { echo "$found"; return; }
    done
}

# Whether the output of sbatch means that the controller did not answer in time, and not that it refused.
slow() {
    printf '%s\n' "$1" | grep -q -i -e 'timed out' -e 'to contact' -e 'communication' -e 'connection' -e 'zero bytes' -e 'send/recv' -e 'transport'
}

# Removes the traces of a submit that Slurm refused.
forget() {
    case $KIND in
        run) rm -rf -- "./$RUN" ;;
        again) rm -rf -- "./$RUN/.secrets" "./$RUN/$AGAIN" "./$RUN/$RIGHT" ;;
        array) rm -rf -- "./$RUN/arrays/$AGAIN" ;;
    esac
}

noted() {
    case $KIND in
        array) sed -n '/^   "number": '"$AGAIN"',$/{n;s/^   "job_id": \([1-9][0-9]*\),*$/\1/p;}' "./$RUN/sweep.json" ;;
        *) sed -n 's/^  "job_id": \([0-9][0-9]*\),*$/\1/p' "./$RUN/manifest.json" | grep -v -x -e "$OLD" ;;
    esac
}

# Finds the job by the key in its comment, or by its script, which no site's rules rewrite.
in_queue() {
    jobs=$(squeue --noheader --states=all "--user=$KIT_UID" '--format=kit|%F|%o|%k' 2>/dev/null) || return 1
    printf '%s\n' "$jobs" | awk -F '|' -v "old=$OLD" -v "key=$KEY" -v "script=$RUNS/$RUN/$SCRIPT" \
        '$1 ~ /kit$/ && $2 + 0 > old + 0 && ($3 == script || $4 == key) { print $2; exit }'
}

note() {
    jobs=$number
    case $KIND in
        array)
            note_array
            ;;
        *)
            if [ "$LINKS" -gt 0 ]; then
                if ! links; then
                    if [ "$said" = "$UNDER_WAY" ] || slow "$said"; then result unknown "$said"; else forget; result refused "$said"; fi
                    return
                fi
                jobs=$(tr '\n' ' ' <"./$RUN/state/links")
            fi
            later=$(printf '%s' "$jobs" | sed 's/^[0-9]* *//; s/ *$//; s/ /, /g')
            from="./$RUN/manifest.json"
            [ "$KIND" != again ] || [ ! -f "./$RUN/$AGAIN" ] || from="./$RUN/$AGAIN"
            sed -e 's/^  "job_id": null\(,*\)$/  "job_id": '"$number"'\1/' -e 's/^  "links": \[\]\(,*\)$/  "links": ['"$later"']\1/' "$from" >"./$RUN/.manifest.$$" \
                && mv -f -- "./$RUN/.manifest.$$" "./$RUN/manifest.json"
            [ "$KIND" != again ] || rm -f -- "./$RUN/$AGAIN" "./$RUN/state/cancelled"
            ;;
    esac
    result submitted "$jobs"
}

# Notes the number in the record of each point that has a folder, then in the sweep's. Each file is replaced as a whole. Points without
# a folder, and those of the same array that have one, are lines of a list.
note_array() {
    if [ -f "./$RUN/arrays/$AGAIN/points" ]; then
        printf '%s\n' "$number" >"./$RUN/arrays/$AGAIN/.job.$$" && mv -f -- "./$RUN/arrays/$AGAIN/.job.$$" "./$RUN/arrays/$AGAIN/job"
        sed -n 's/ -$//p' "./$RUN/arrays/$AGAIN/points" | while read -r point; do
            sed -i 's/^  "job_id": null\(,*\)$/  "job_id": '"$number"'\1/' "./$RUN/points/$RUN.$point/manifest.json"
        done
    fi
    find -L "./$RUN/arrays/$AGAIN" -mindepth 2 -maxdepth 2 -name manifest.json \
        -exec sed -i 's/^  "job_id": null\(,*\)$/  "job_id": '"$number"'\1/' {} +
    sed -i '/^   "number": '"$AGAIN"',$/{n;s/^   "job_id": 0\(,*\)$/   "job_id": '"$number"'\1/;}' "./$RUN/sweep.json"
}
