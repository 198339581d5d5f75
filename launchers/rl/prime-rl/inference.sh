#!/bin/bash
# prime-rl's inference server on one node, with all its copies of the model on one port: inference.sh CONFIG
set -euo pipefail

# shellcheck source-path=SCRIPTDIR
source "${BASH_SOURCE[0]%/*}/infiniband.sh"
infiniband::prefer

ulimit -n 65536 2>/dev/null || ulimit -n "$(ulimit -Hn)"
# The router runs as a separate role.
exec inference @ "$1" --router None --server.host 0.0.0.0 --server.port "${KIT_ROLE_INFERENCE_PORT_HTTP}"
