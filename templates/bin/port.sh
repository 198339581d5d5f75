#!/bin/bash
# port.sh PORT: one connection to a port of this node, from standard input and to standard output. Each has a step of its own.
set -uo pipefail

# For an answer to who will say nothing more.
readonly -i lingers_s=60

exec {link}<>"/dev/tcp/127.0.0.1/$1" || exit 69
cat <&"${link}" &
answers=$!
cat <&0 >&"${link}" 2>/dev/null &
asks=$!
# Whichever ends first: neither may be left, since a step lasts as long as any process of it.
wait -n "${answers}" "${asks}"
for ((second = 0; second < lingers_s; second++)); do
    kill -0 "${answers}" 2>/dev/null || break
    sleep 1
done
kill "${answers}" "${asks}" 2>/dev/null
exit 0
