#!/bin/bash
{% for option in sbatch %}
#SBATCH {{ option }}
{% endfor %}
# shellcheck source-path=SCRIPTDIR

readonly KIT_RUN_DIR={{ run_dir | sh }}

# A later link of a chain. It continues where the link before it was cut.
# Below this line nothing is generated.
set -uo pipefail

source "${KIT_RUN_DIR}/lib/log.sh"
source "${KIT_RUN_DIR}/lib/numbers.sh"
source "${KIT_RUN_DIR}/lib/chain.sh"

chain::require_more
exec "${KIT_RUN_DIR}/batch.sh"
