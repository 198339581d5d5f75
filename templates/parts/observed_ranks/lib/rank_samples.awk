# Finds a dead node, or the rank that the others wait for, from the samples of sample-ranks.sh: { tail -v -n 1 *.samples; stat
# --format='@mtime %Y %n' *.samples; } | awk -f rank_samples.awk -v nodes=" n1 n2 " -v limit=120 -v reported=0
# nodes: those of the ranks now. limit: seconds without a move. reported: 1 where ranks report steps, which stall.awk judges; then only
# nodes are judged. Prints at most one line: `unsure` where a line was cut off, or as stall.awk `RULE ROLE RANK NODE 0 PHASE IDLE
# WAITING COUNT OTHERS`, with PHASE `KIND:PLACE` of the rank.
#
#   observed-node     a node's file has not become newer, and those of most nodes have
#   observed-stall    a rank is stopped, has ended, waits for a disk, a lock or its data loader, or is in another collective than the
#                     others, which all wait
#   observed-slow     one rank is elsewhere than the others, which may be work or a wait on purpose: nothing is ended for it
#
# A role is judged only if none of its ranks moves.

BEGIN {
    FS = "\t"
    dead_s = 30
}

/^@mtime / { split($0, word, " "); written[node_of(substr($0, index($0, "/")))] = word[2] + 0; next }
/^==> / { file = substr($0, 5); sub(/ <==$/, "", file); node = node_of(file); next }
NF < 1 || index(nodes, " " node " ") == 0 { next }

{
    split($1, head, " ")
    if (head[1] !~ /^[0-9.]+$/ || head[2] + 0 != NF - 2 || $NF != ".") { unsure = 1; next }
    for (f = 2; f < NF; f++) {
        if (split($f, word, " ") != 6) { unsure = 1; next }
        # A rank that has ended here may live on another node, after another start.
        i = word[1] in place_of ? place_of[word[1]] : ++n
        if (i in kind && word[4] == "gone") continue
        place_of[word[1]] = i
        role[i] = word[1]; sub(/@[^@]*$/, "", role[i])
        rank[i] = word[1]; sub(/^.*@/, "", rank[i])
        where[i] = node; idle[i] = head[1] - word[2]; busy[i] = word[3] >= 1; kind[i] = word[4]
        place[i] = word[5]; what[i] = word[6]
        if (!(role[i] in known)) { known[role[i]] = ++roles; named[roles] = role[i] }
    }
}

function node_of(path) { sub(/\.samples$/, "", path); sub(/^.*\/slurm-[0-9]+\./, "", path); return path }
function sick(i) { return kind[i] == "stopped" || kind[i] == "disk" || kind[i] == "gone" }
# Where a rank is: without a stack, what the kernel says.
function spot(i) { return kind[i] == "collective" ? what[i] : place[i] != "-" ? place[i] : what[i] }

function look_for_dead_nodes(    names, many, k, newest, silent, first, others) {
    many = split(nodes, names, " ")
    for (k = 1; k <= many; k++) if (written[names[k]] + 0 > newest) newest = written[names[k]]
    for (k = 1; k <= many; k++) {
        if (!(names[k] in written)) { missing++; continue }
        if (newest - written[names[k]] <= dead_s) continue
        silent++
        if (first == "") first = names[k]
        else others = others (others == "" ? "" : ",") names[k]
    }
    if (!silent || 2 * silent > many) return
    for (k = 1; k <= n; k++) if (where[k] != first && index("," others ",", "," where[k] ",") == 0) waiting++
    printf "observed-node - 0 %s 0 - %d %d %d %s\n", first, newest - written[first], waiting, silent, others == "" ? "-" : others
    exit
}

# Marks the ranks of the role that are where the others are not. Returns what tells them apart.
function mark(of,    i, mine, sicks, outside, inside, most, k) {
    split("", odd); split("", count)
    for (i = 1; i <= n; i++) if (role[i] == of) {
        mine++
        if (sick(i)) sicks++
        if (kind[i] == "collective") inside++; else outside++
        count[spot(i)]++
    }
    if (sicks && 2 * sicks <= mine) { for (i = 1; i <= n; i++) if (role[i] == of && sick(i)) odd[i] = 1; return "sick" }
    if (outside && outside <= inside) { for (i = 1; i <= n; i++) if (role[i] == of && kind[i] != "collective") odd[i] = 1; return "outside" }
    for (k in count) if (most == "" || count[k] > count[most]) most = k
    if (most == "" || 2 * count[most] <= mine || count[most] == mine) return ""
    for (i = 1; i <= n; i++) if (role[i] == of && spot(i) != most) odd[i] = 1
    return outside ? "place" : "order"
}

# Whether what tells the ranks apart is evidence of a stall, and not only of a difference.
function proves(of, how,    i, others) {
    if (how == "order") return 1
    if (how == "place") return 0
    for (i = 1; i <= n; i++) if (role[i] == of) {
        if (!odd[i] && kind[i] == "collective") others++
        if (odd[i] && how == "outside" && kind[i] != "lock" && kind[i] != "loader") return 0
        if (odd[i] && kind[i] == "gone") how = "gone"
    }
    # A rank may end early, and the others work on.
    return how != "gone" || others > 0
}

function say(of, how,    i, first, others, blamed, mine) {
    for (i = 1; i <= n; i++) if (role[i] == of) {
        mine++
        if (!odd[i]) continue
        blamed++
        if (!first) first = i
        else if (where[i] != where[first] && index("," others ",", "," where[i] ",") == 0) others = others (others == "" ? "" : ",") where[i]
    }
    printf "%s %s %d %s 0 %s:%s %d %d %d %s\n", proves(of, how) ? "observed-stall" : "observed-slow", of == "" ? "-" : of, rank[first], \
        where[first], kind[first], spot(first), idle[first], mine - blamed, mine, others == "" ? "-" : others
    exit
}

END {
    look_for_dead_nodes()
    if (unsure) { print "unsure"; exit }
    if (reported || missing) exit
    for (r = 1; r <= roles; r++) {
        moves = 0
        # A loop may be at one line at each look by chance; this is less likely the longer it is looked at.
        for (i = 1; i <= n; i++) if (role[i] == named[r] && idle[i] < (busy[i] ? 2 : 1) * limit) moves++
        if (moves) continue
        how = mark(named[r])
        if (how != "") say(named[r], how)
    }
}
