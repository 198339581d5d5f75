#!/bin/bash
# Starts prime-rl's inference servers on one node: inference.sh PYTHON CONFIG COPIES REPLICAS (servers.py explains these)
set -euo pipefail

# shellcheck source-path=SCRIPTDIR
source "${BASH_SOURCE[0]%/*}/infiniband.sh"
infiniband::prefer
if [[ "${KIT_ROLE}" != inference ]]; then
    infiniband::transfer
fi

ulimit -n 65536 2>/dev/null || ulimit -n "$(ulimit -Hn)"
exec "$1" "${BASH_SOURCE[0]%/*}/servers.py" "${@:2}"
