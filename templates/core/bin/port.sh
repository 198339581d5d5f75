#!/bin/bash
# port.sh PORT: connects standard input and output to a port of this node. Each connection has its own step.
set -uo pipefail

# Seconds to wait for an answer once the client has sent everything.
readonly -i lingers_s=60

exec {never}<> <(:)
exec {link}<>"/dev/tcp/127.0.0.1/$1" || exit 69
cat <&"${link}" &
answers=$!
cat <&0 >&"${link}" 2>/dev/null &
asks=$!
# Wait for the first to end, and leave neither behind: a step lasts as long as any of its processes. bash 4.4 can wait for all of
# several, and this pipe, which nobody writes to, sleeps without a process.
while kill -0 "${answers}" && kill -0 "${asks}"; do
    read -r -t 0.2 <&"${never}"
done 2>/dev/null
for ((second = 0; second < lingers_s; second++)); do
    kill -0 "${answers}" 2>/dev/null || break
    sleep 1
done
kill "${answers}" "${asks}" 2>/dev/null
exit 0
