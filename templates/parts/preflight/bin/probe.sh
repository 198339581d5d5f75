#!/bin/bash
# probe.sh PYTHON IMAGE-ENV: one task per node, inside the container, before the ranks. Most of the check is that this runs at all.
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
