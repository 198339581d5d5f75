"""Variables that a rank sees, with their meaning: `docs/reference/variables.md` is made from them.

worker.sh, rank.sh and rank_variables.sh of templates/core set them; a test compares them with those of a real rank.
"""

from __future__ import annotations

from collections.abc import Mapping

# Name -> meaning. Under torchrun, torchrun sets these itself, to the same values; rank.sh sets NODE_RANK from GROUP_RANK.
OF_THE_RANK: Mapping[str, str] = {
    "RANK": "number of the rank among all ranks of its role, counted from 0",
    "WORLD_SIZE": "number of ranks of the role",
    "LOCAL_RANK": "number of the rank on its node, counted from 0",
    "LOCAL_WORLD_SIZE": "number of the role's ranks on the node",
    "NODE_RANK": "number of the node in the role, counted from 0",
    "MASTER_ADDR": "IPv4 address of the node of rank 0",
    "MASTER_PORT": "free port at MASTER_ADDR; the kit derives the number from the job id and the attempt",
}
OF_THE_RUN: Mapping[str, str] = {
    "KIT_RUN_DIR": "path of the run folder; in a container: /kit/run",
    "KIT_CHECKPOINT_DIR": "folder for the program's checkpoints: checkpoints/ of the run folder, or the folder in `checkpoint.dir`",
    "KIT_RESTART_COUNT": "how often the ranks (of the role) were started before, also before a requeue; 0 at the first start",
    "KIT_SEED": "the same seed for all ranks: `seed` of the job, or a random number that the submit draws and records",
    "KIT_NNODES": "number of nodes of the role",
    "KIT_RANKS_PER_NODE": "number of ranks on each node of the role",
    "KIT_WORLD_SIZE": "WORLD_SIZE as the rank got it; a launcher that the program starts changes only WORLD_SIZE",
    "KIT_ROLE": "name of the rank's role; not set in a job without roles",
    "KIT_ROLE_NAME_ADDR": "address of the first node of the role NAME; in NAME and PORT, letters are upper case and `-` is `_`",
    "KIT_ROLE_NAME_NODES": "addresses of all nodes of the role NAME",
    "KIT_ROLE_NAME_PORT_PORT": "number of the port PORT of the role NAME",
    "KIT_ROLES_FILE": "path of a JSON file with the nodes and addresses of all roles; set only in a job with roles",
    "KIT_CHECKPOINT_EVERY": "`checkpoint.every`, if the job sets it",
    "KIT_CHECKPOINT_KEEP": "`checkpoint.keep`, if the job sets it",
    "KIT_CHECKPOINT_ASYNC": "1 if the job sets `checkpoint.async = true`",
    "KIT_DEVICE": "cuda in a job that gets GPUs; a role with `gpus = []` and a job on placeholder GPUs do not have it",
    "KIT_PROFILE_STEPS": "`profile.steps`, if the job sets it",
    "KIT_PROFILE_RANKS": "`profile.ranks`, if the job sets it",
}
OF_LIBRARIES: Mapping[str, str] = {
    "OMP_NUM_THREADS": "number of CPUs of a rank, unless the job or the cluster sets another number",
    "PYTHONPATH": "code/ and lib/ of the run folder; lib/ contains the module kit_rank",
    "PYTHONUNBUFFERED": "1: each line of output reaches the log at once",
    "PYTHONFAULTHANDLER": "1: a crash prints the Python stacks",
    "PYTHONNOUSERSITE": "1: Python ignores packages in ~/.local",
    "TORCH_FR_BUFFER_SIZE": "2000: number of entries in PyTorch's flight recorder, which `kit stacks` and `kit why` read",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1 if the job sets `torchrun.max_restarts`: each start of the ranks has its own store",
    "TRITON_CACHE_DIR": "cache folder on the node's own disk, one for each image",
    "TORCH_EXTENSIONS_DIR": "cache folder on the node's own disk, one for each image",
    "TORCHINDUCTOR_CACHE_DIR": "cache folder on the node's own disk, one for each image",
    "CUDA_CACHE_PATH": "cache folder on the node's own disk, one for each image",
    "HF_HOME": "cache folder on the node's own disk, shared by all images",
    "XDG_CACHE_HOME": "cache folder on the node's own disk, shared by all images",
    "MPLCONFIGDIR": "cache folder on the node's own disk, shared by all images",
    "CUDA_VISIBLE_DEVICES": "the GPUs that Slurm gives the job on the node; in a job with roles: only the GPUs of the role",
}
