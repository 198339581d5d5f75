#!/bin/bash
{% for option in sbatch %}
#SBATCH {{ option }}
{% endfor %}
# shellcheck source-path=SCRIPTDIR

readonly KIT_RUN_DIR={{ run_dir | sh }}
readonly KIT_CODE={{ code | sh }}

# A later link of a chain. It continues where the link before it was cut.
# Below this line nothing is generated.
set -uo pipefail

# include core/own_code.sh
require_own_code bin lib batch.sh

source "${KIT_RUN_DIR}/lib/log.sh"
source "${KIT_RUN_DIR}/lib/numbers.sh"
source "${KIT_RUN_DIR}/lib/chain.sh"

chain::require_more
exec "${KIT_RUN_DIR}/batch.sh"
