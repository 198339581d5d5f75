#!/bin/bash
# probe.sh PYTHON IMAGE-ENV: one task per node, inside the container, before the ranks: that this runs at all is most of the answer.
set -uo pipefail

run="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"
report="${run}/state/preflight/${SLURMD_NODENAME:-$(uname -n)}.probe"
# shellcheck source=/dev/null
source "${run}/$2"
if ! command -v "$1" >/dev/null; then
    printf '%s: the container starts, and has no %s on its PATH (%s)\n' "${SLURMD_NODENAME:-?}" "$1" "${PATH}" | tee -- "${report}.failed"
    exit 1
fi
: >"${report}.ok"
