# Finds the rank that stalls: tail -v -n 1 slurm-JOB.*.progress | awk -f stall.awk -v now=… -v since=… -v seconds=… -v least=… now:
# this node's clock, in seconds. since: earlier reports belong to another attempt. seconds: the limit of every phase; 0: learned.
# least: the smallest limit, set after a wrong alarm. Prints `furthest STEP`, the most steps that any rank of any attempt has done,
# `-` where no rank reports steps. For a stall it prints `RULE ROLE RANK NODE STEP PHASE IDLE WAITING COUNT OTHERS`: ROLE is `-` in
# a plain job, COUNT the number of stalled ranks, OTHERS the nodes of further culprits, separated by commas, or `-`. Lines `@mtime
# SECONDS FILE` give the time of the file's last write by its server's clock. With it, a node's wrong clock is noticed and
# corrected. The rules are those of kit/health/progress.py, which judges for a person; tests/unit/test_stall.py compares the two.
# Only here, a file may come from another node's NFS cache, up to a minute late. What a rank has done since the line was written is
# not guessed.

BEGIN {
    FS = "\t"
    slow_s = 600; least_s = 8; look_s = 2
    # Seconds by which a node's clock may differ from the file server's.
    clock_s = 10
    # Seconds for which a collector may be silent, for example because of NFS caches.
    silent_s = 120
    # Seconds for which a program without reports must be quiet, on all nodes.
    quiet_s = 1800
    furthest = 0
}

/^@mtime / { written[substr($0, index($0, "/"))] = substr($0, 8) + 0; next }
/^==> / { file = substr($0, 5); sub(/ <==$/, "", file); node = $0; sub(/\.progress <==$/, "", node); sub(/^.*\/slurm-[0-9]+\./, "", node); next }
NF < 2 { next }

{
    skew = file in written ? $1 - written[file] : 0
    if (skew < clock_s && skew > -clock_s) skew = 0
    looked = $1 - skew; collectors++
    for (i = 2; i <= NF; i++) {
        fields = split($i, word, " ")
        if (word[1] == "@quiet") { if (word[2] >= quiet_s && now - looked <= silent_s) { quiet++; if (!quiet_for || word[2] < quiet_for) quiet_for = word[2]; quiet_node = node } continue }
        if (fields < 6) continue
        if (word[2] + 0 > furthest) furthest = word[2] + 0
        reports++
        word[4] -= skew
        if (word[4] < since) continue
        if (word[3] == "end") { over = word[1]; sub(/@[^@]*$/, "", over); finishes[over] = 1; continue }
        n++
        role[n] = word[1]; sub(/@[^@]*$/, "", role[n])
        rank[n] = word[1]; sub(/^.*@/, "", rank[n])
        where[n] = node; step[n] = word[2] + 0; phase[n] = word[3]
        silent[n] = now - looked > silent_s
        idle[n] = (silent[n] ? now : looked) - word[4]
        between[n] = word[6] > 0 ? word[5] * word[6] : -1
        longest[n] = fields > 6 ? word[7] + 0 : 0
        slowest[n] = fields > 9 ? word[10] + 0 : 0
        if (!(role[n] in known)) { known[role[n]] = ++roles; named[roles] = role[n] }
    }
}

function slow(name) { return name == "start" || name == "rendezvous" || name == "compile" || name == "save" || name == "evaluate" }
function waits(name) { return name == "compute" || name == "communicate" }
function most(a, b) { return a > b ? a : b }

# The median time between two reports of this role's ranks; -1 before the second report. By Shell's sort: an insertion sort of 8,192
# ranks took a quarter of a CPU.
function usual(of,    i, j, t, gap, many) {
    many = 0
    for (i = 1; i <= n; i++) if (role[i] == of && between[i] >= 0) sorted[++many] = between[i]
    if (!many) return -1
    for (gap = int(many / 2); gap >= 1; gap = gap == 2 ? 1 : int(gap * 5 / 11)) for (i = gap + 1; i <= many; i++) {
        t = sorted[i]
        for (j = i; j > gap && sorted[j - gap] > t; j -= gap) sorted[j] = sorted[j - gap]
        sorted[j] = t
    }
    return many % 2 ? sorted[(many + 1) / 2] : (sorted[many / 2] + sorted[many / 2 + 1]) / 2
}

# over: a rank of the role has ended, and the others may write for longer. before: the longest time that this phase has taken.
function limit(name, every, peak, over, before) {
    if (seconds > 0) return most(seconds, least)
    if (slow(name) && before > 0 && every >= 0 && !over) return most(most(least_s, 3 * most(every, before)), least) + look_s
    if (slow(name) || every < 0 || over) return most(most(slow_s, 10 * most(every, 0)), least)
    return most(most(least_s, 3 * every), most(2 * peak, least)) + look_s
}

function say(rule,    i, first, others, blamed, still_n, all) {
    others = ""
    for (i = 1; i <= n; i++) {
        if (role[i] == judged) all++
        if (still[i]) still_n++
        if (!culprit[i]) continue
        blamed++
        if (!first) first = i
        else if (index("," others, "," where[i] ",") == 0) others = others where[i] ","
    }
    if (!first) for (i = n; i >= 1; i--) if (still[i]) first = i
    sub(/,$/, "", others)
    printf "%s %s %d %s %d %s %d %d %d %s\n", rule, judged == "" ? "-" : judged, rank[first], where[first], step[first], phase[first], \
        idle[first], all - blamed, still_n, others == "" ? "-" : others
    exit
}

END {
    print "furthest", reports ? furthest : "-"
    for (r = 1; r <= roles; r++) {
        judged = named[r]; every = usual(judged); peak = 0; mine = 0; fresh = 0; gone = 0
        for (i = 1; i <= n; i++) if (role[i] == judged) { mine++; peak = most(peak, longest[i]) }
        split("", still); split("", culprit)
        # Ranks that wait, at the next step or at the end of a save, may wait for a rank that saves and is still within its limit.
        held = 0
        for (i = 1; i <= n; i++) if (role[i] == judged) {
            past[i] = idle[i] > limit(phase[i], every, peak, judged in finishes, slowest[i])
            if (!past[i] && slow(phase[i]) && seconds == 0) held = 1
        }
        for (i = 1; i <= n; i++) if (role[i] == judged && past[i] && !(held && (waits(phase[i]) || slow(phase[i])) && !silent[i])) {
            still[i] = 1
            if (silent[i]) gone++; else fresh++
        }
        # A killed collector reports nothing of its ranks. They count as stalled where those of other nodes are.
        if (!fresh) continue
        if (gone) { for (i = 1; i <= n; i++) if (still[i] && silent[i]) culprit[i] = 1; say("stalled-node") }
        top = 0; low = -1
        for (i = 1; i <= n; i++) if (role[i] == judged) top = most(top, step[i])
        for (i = 1; i <= n; i++) if (still[i] && step[i] < top && (low < 0 || step[i] < low)) low = step[i]
        if (low >= 0) {
            busy = 0
            for (i = 1; i <= n; i++) if (still[i] && step[i] == low && !waits(phase[i])) busy++
            for (i = 1; i <= n; i++) if (still[i] && step[i] == low && (!busy || !waits(phase[i]))) culprit[i] = 1
            say("stalled-behind")
        }
        elsewhere = 0; together = 0
        for (i = 1; i <= n; i++) if (still[i] && !waits(phase[i])) { culprit[i] = 1; elsewhere++ }
        if (!elsewhere) {
            for (i = 1; i <= n; i++) if (role[i] == judged && phase[i] == "communicate") together++
            if (together) for (i = 1; i <= n; i++) if (still[i] && phase[i] == "compute") { culprit[i] = 1; elsewhere++ }
        }
        if (elsewhere && elsewhere < mine) say("stalled-phase")
        split("", culprit)
        say("stalled-together")
    }
    if (!reports && collectors && quiet == collectors)
        printf "stalled-silent - 0 %s 0 - %d 0 %d -\n", quiet_node, quiet_for, collectors
}
