"""Variables that a rank sees, with their meaning: `docs/reference/variables.md` is made from them.

templates/bin/worker.sh, rank.sh and templates/lib/rank_variables.sh set them; a test compares them with those of a real rank.
"""

from __future__ import annotations

from collections.abc import Mapping

# Name -> meaning. If torchrun starts the ranks, it sets the first ones itself, to the same values.
OF_THE_RANK: Mapping[str, str] = {
    "RANK": "number of the rank, from 0, over all nodes of its role",
    "WORLD_SIZE": "number of ranks",
    "LOCAL_RANK": "number of the rank on its node, from 0",
    "LOCAL_WORLD_SIZE": "number of ranks on the node",
    "NODE_RANK": "number of the node, from 0",
    "MASTER_ADDR": "IPv4 address of the first node",
    "MASTER_PORT": "free port there; it comes from the job id and the attempt",
}
OF_THE_RUN: Mapping[str, str] = {
    "KIT_RUN_DIR": "run folder; /kit/run in a container",
    "KIT_CHECKPOINT_DIR": "where the program saves: checkpoints/ of the run folder, unless `checkpoint.dir` names another folder",
    "KIT_RESTART_COUNT": "0 at first; one more at every start of the ranks, requeues included",
    "KIT_SEED": "one seed for all ranks: `seed` of the job, else drawn at submit and recorded",
    "KIT_NNODES": "number of nodes of the role",
    "KIT_RANKS_PER_NODE": "ranks on each of them",
    "KIT_ROLE": "name of the rank's role; unset in a job without roles",
    "KIT_ROLES_FILE": "JSON file with the nodes and addresses of all roles; in a job with roles",
    "KIT_CHECKPOINT_EVERY": "`checkpoint.every`, if the job sets it",
    "KIT_CHECKPOINT_KEEP": "`checkpoint.keep`, if the job sets it",
    "KIT_CHECKPOINT_ASYNC": "1 with `checkpoint.async = true`",
    "KIT_PROFILE_STEPS": "`profile.steps`, if the job sets it",
    "KIT_PROFILE_RANKS": "`profile.ranks`, if the job sets it",
}
OF_LIBRARIES: Mapping[str, str] = {
    "OMP_NUM_THREADS": "CPUs of a rank, unless the job or the cluster sets another number",
    "PYTHONPATH": "code/ and lib/ of the run folder; lib/ holds kit_rank",
    "PYTHONUNBUFFERED": "1: each line of output reaches the log at once",
    "PYTHONFAULTHANDLER": "1: a crash prints the Python stacks",
    "PYTHONNOUSERSITE": "1: packages of ~/.local stay outside",
    "TORCH_FR_BUFFER_SIZE": "2000: entries of torch's flight recorder, read by `kit stacks` and `kit why`",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1 with `torchrun.max_restarts`: each start of the ranks has its own store",
    "TRITON_CACHE_DIR": "folder of the image on the node's own disk",
    "TORCH_EXTENSIONS_DIR": "folder of the image on the node's own disk",
    "TORCHINDUCTOR_CACHE_DIR": "folder of the image on the node's own disk",
    "CUDA_CACHE_PATH": "folder of the image on the node's own disk",
    "HF_HOME": "folder on the node's own disk",
    "XDG_CACHE_HOME": "folder on the node's own disk",
    "CUDA_VISIBLE_DEVICES": "the job's GPUs on the node, as Slurm sets it; in a job with roles those of the role",
}
