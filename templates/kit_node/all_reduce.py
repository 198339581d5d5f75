"""Makes one all-reduce over all ranks. The right sum shows that every rank reaches every other one."""

import os

import torch
import torch.distributed as dist

backend = "nccl" if torch.cuda.is_available() else "gloo"
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if backend == "nccl" else torch.device("cpu")
if backend == "nccl":
    torch.cuda.set_device(device)
dist.init_process_group(backend)
total = torch.ones(1, device=device)
dist.all_reduce(total)
world_size = dist.get_world_size()
dist.destroy_process_group()
if int(total.item()) != world_size:
    raise SystemExit(f"the sum of {world_size} ones is {total.item()}")
print(f"all-reduce over {world_size} ranks: as it should be", flush=True)
