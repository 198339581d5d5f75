#!/bin/bash
{% for option in sbatch %}
#SBATCH {{ option }}
{% endfor %}

readonly KIT_ARRAY_DIR={{ array_dir | sh }}

# Task n runs what link n of this folder points at: the run folder of one point.
# Below this line nothing is generated.
exec "${KIT_ARRAY_DIR}/${SLURM_ARRAY_TASK_ID}/batch.sh"
