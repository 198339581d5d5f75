#!/bin/bash
{% for option in sbatch %}
#SBATCH {{ option }}
{% endfor %}
# {{ name }}, as `kit render --plain` wrote it. Submit it with `sbatch THIS-FILE`; no kit is needed.
{% for line in explained %}
# {{ line }}
{% endfor %}
{% if image %}
# Image: {{ image }}
{% endif %}
#
# `kit submit` of the same job also checks the nodes{{ " and the image" if image }} before any rank starts, keeps a log of each rank, names the rank
# that failed first,{{ " starts again after a fault," if retries }} and records what ran.
set -euo pipefail

# The environment of each rank.
{% for line in env %}
export {{ line }}
{% endfor %}

# All ranks meet at the first node. The port is derived from the job's id, so that jobs on one node rarely share it.
MASTER_ADDR="$(scontrol show hostnames "${SLURM_JOB_NODELIST}" | head -n 1)"
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT
{% if once %}

# Once, before any rank.
{{ once }} <<'ONCE'
set -e
{% for line in once_lines %}
{{ line }}
{% endfor %}
ONCE
{% endif %}
{% if monitor %}

# Writes the use of the GPUs of each node to gpus-JOB-NODE.log, every {{ delay }} s, until the ranks have ended.
srun --overlap --mem=0 --nodes={{ nodes }} --ntasks={{ nodes }} --ntasks-per-node=1 --cpus-per-task=1 --mpi=none --output={{ folder }}/gpus-%j-%N.log \
    nvidia-smi dmon -s {{ select | sh }} -o DT -d {{ delay }} &
monitor=$!
trap 'kill "${monitor}" 2>/dev/null || true' EXIT
{% endif %}

# One task a {{ "rank" if shape == "srun" else "node" }}. Each runs the lines up to RANK.
{{ srun }} <<'RANK' &
{% if shape == "srun" %}
export RANK="${SLURM_PROCID}" WORLD_SIZE="${SLURM_NTASKS}" LOCAL_RANK="${SLURM_LOCALID}" LOCAL_WORLD_SIZE={{ ranks_per_node }}
{% endif %}
export NODE_RANK="${SLURM_NODEID}"
{% for name, value in image_env %}
export {{ name }}={{ value | sh }}
{% endfor %}
cd {{ workdir | sh }}
{% for line in setup %}
{{ line }}
{% endfor %}
program=({{ program }})
{% for option, variable in rank_args %}
program+=({{ option | sh }} "${{ '{' }}{{ variable }}}")
{% endfor %}
{% if shape == "srun" %}
exec "${program[@]}" </dev/null
{% else %}
exec {{ python | sh }} -m torch.distributed.run --nnodes={{ nodes }} --nproc-per-node={{ ranks_per_node }} --node-rank="${SLURM_NODEID}" \
    --master-addr="${MASTER_ADDR}" --master-port="${MASTER_PORT}"{% if torchrun_options %} {{ torchrun_options }}{% endif %} --no-python "${program[@]}" </dev/null
{% endif %}
RANK
ranks=$!
{% if signal %}

# Before the time limit (see --signal above), Slurm sends this script {{ signal }}. The ranks get {{ rank_signal }}, to save{{ ", and the job goes back to the queue" if requeue else "" }}.
warned=""
trap 'warned=1; scancel --signal={{ rank_signal }} "${SLURM_JOB_ID}"' {{ signal }}
{% endif %}

code=0
wait "${ranks}" || code=$?
{% if signal %}
# {{ signal }} interrupts `wait`: wait again for the ranks.
if [[ -n "${warned}" ]]; then
    code=0
    wait "${ranks}" || code=$?
{% if requeue %}
    scontrol requeue "${SLURM_JOB_ID}"
{% endif %}
fi
{% endif %}
exit "${code}"
