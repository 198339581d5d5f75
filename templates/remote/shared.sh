# shellcheck shell=sh
# Shared by all programs that run on a login node, in POSIX sh with any shell, with coreutils, find, awk, gzip and tar.
# A program defines `main`. Its answer has the form that kit/ssh/answers.py reads.

LC_ALL=C
export LC_ALL
umask 022
# A broken connection must not end a program in the middle: each runs to its own end.
trap '' HUP PIPE
KIT_USER=$(id -un)
KIT_UID=$(id -u)
KIT_DATA=${XDG_DATA_HOME:-$HOME/.local/share}/kit

# Keeps only the variables of this session that Slurm's commands, and so jobs, may get: the list of kit/slurm/client.py.
kit_environment() {
    for kit_name in $(env | sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p'); do
        case $kit_name in
            PATH | HOME | USER | LOGNAME | SHELL | LANG | LC_ALL | TZ | TMPDIR | SLURM_CONF | PWD | OLDPWD | _ | SHLVL) ;;
            *) unset "$kit_name" ;;
        esac
    done
    kit_inherited
}

# kit_room FOLDER: prints the free space of a disk after a failed write, as the last part of an error.
kit_room() {
    df -Pk -- "$1" 2>/dev/null | awk -v "folder=$1" 'NR == 2 { print $4 " KiB are free in " folder }' >&2
}

# kit_enter FOLDER: makes a folder where others may write, and enters it. A link that another user made there would lead to other
# files of this user. What is done by a relative path afterwards is done in this folder, whatever others rename.
kit_enter() {
    mkdir -m "${2:-755}" -- "$1" 2>/dev/null
    cd -P -- "$1" && [ "$(pwd)" = "$(cd -P -- "${1%/*}" && pwd)/${1##*/}" ] && return 0
    echo "$1 cannot be made, or is a link" >&2
    return 1
}

# kit_enter_own FOLDER: the same, and only this user may write the folder.
kit_enter_own() {
    kit_enter "$1" 700 || return 1
    kit_is_own . && return 0
    echo "$1 is not yours alone: others may have put files there: remove it, or set paths of the cluster" >&2
    return 1
}

kit_is_own() {
    [ -n "$(find "$1" -maxdepth 0 -type d -uid "$KIT_UID" ! -perm /022 2>/dev/null)" ]
}

# answer NAME COMMAND...: sends the command's output and its exit code.
answer() {
    kit_name=$1
    shift
    kit_out=$("$@" </dev/null)
    kit_code=$?
    section "$kit_name" "$kit_code" "$kit_out"
}

# section NAME CODE TEXT
section() {
    printf 'answer %s %d %d\n%s\n' "$1" "$2" "${#3}" "$3"
}

# facts: prints user and folders. RUNS and STORE are the cluster's folders for this user.
facts() {
    printf 'user %s\nuid %s\nhome %s\ndata %s\nruns %s\nstore %s\nnow %s\n' \
        "$KIT_USER" "$KIT_UID" "$HOME" "$KIT_DATA" "$RUNS" "$STORE" "$(date +%s)"
}

# kit_relay FOLDER: prints what became of the relay that a run started: up; gone, if its process died; on NODE, if it runs on another
# login node than this one; none, if it has not begun or has ended.
kit_relay() {
    # shellcheck disable=SC2046 # three words
    set -- $(sed -n 's/.*"pid": \([0-9]*\), "node": "\([^"]*\)", "started": \([0-9]*\).*/\1 \2 \3/p' "$1/state/relay.json" 2>/dev/null)
    if [ "$#" -ne 3 ]; then
        echo none
    elif [ "$2" != "$(uname -n)" ]; then
        echo "on $2"
    else
        # The state and the start of the process: proc_pid_stat(5). A dead one may stay as a zombie.
        sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | awk -v "began=$3" \
            '$1 != "Z" && $20 == began { up = 1 } END { print up ? "up" : "gone" }'
    fi
}

# changes LISTER: compares. The program's input has KNOWN bytes of lines `INODE SIZE MTIME PATH`, LISTER prints the present ones.
# Prints the differences: `new LINE`, `grown OLDSIZE LINE` for a file that is only appended to, and `gone LINE`.
changes() {
    {
        head -c "$KNOWN" | sed 's/^/k /'
        "$1" </dev/null | sed 's/^/n /'
    } | awk '
        { line = substr($0, 3); split(line, f, " "); path = substr(line, length(f[1] f[2] f[3]) + 4) }
        $1 == "k" { known[path] = line; inode[path] = f[1]; size[path] = f[2]; next }
        !(path in known) { print "new " line; next }
        known[path] == line { delete known[path]; next }
        {
            appended = path ~ /\/logs\/|\.jsonl$/ && inode[path] == f[1] && size[path] <= f[2]
            print (appended ? "grown " size[path] " " : "new ") line
            delete known[path]
        }
        END { for (path in known) print "gone " known[path] }'
}

# send_changes TEXT: sends what `changes` printed, then the bytes: the ends of files that grew, and an archive of the new files.
send_changes() {
    section changes 0 "$1"
    # shellcheck disable=SC2034 # words that are passed over
    printf '%s\n' "$1" | sed -n 's/^grown //p' | while read -r kit_old kit_inode kit_size kit_time kit_path; do
        kit_length=$((kit_size - kit_old))
        printf 'grown %d %d %s\n' "$kit_old" "$kit_length" "$kit_path"
        tail -c "+$((kit_old + 1))" -- "$kit_path" | head -c "$kit_length"
        printf '\n'
    done
    printf 'end\n'
    printf '%s\n' "$1" | sed -n 's/^new [0-9]* [0-9]* [0-9.]* //p' \
        | tar --create --file=- --dereference --hard-dereference --no-recursion --ignore-failed-read --format=gnu \
            --no-unquote --verbatim-files-from --files-from=- 2>/dev/null
}

# Sends the answer after a mark, because a login shell may have printed something before it.
kit_answer_all() {
    printf '\n%s\n' "$KIT_MARK"
    main | gzip -1
}
