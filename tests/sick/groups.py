"""Replica groups that ask a lighthouse who is there at every step: `groups.py STEP_S`, by torchft, as launchers/diloco does.

`fault-may-begin` in the run folder says that all of them have done a few.
"""

import os
import pathlib
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from kit_rank import progress
from torchft._torchft import ManagerClient, ManagerServer

AT = 6
step_s = float(sys.argv[1])
run, rank, group = pathlib.Path(os.environ["KIT_RUN_DIR"]), int(os.environ["RANK"]), int(os.environ["REPLICA_GROUP_ID"])
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1000))
if rank == 0:
    server = ManagerServer(
        replica_id=f"{group:04d}",
        lighthouse_addr=os.environ["TORCHFT_LIGHTHOUSE"],
        hostname=os.environ["MASTER_ADDR"],
        bind="0.0.0.0:0",
        store_addr="",
        world_size=1,
        heartbeat_interval=timedelta(milliseconds=100),
        connect_timeout=timedelta(seconds=60),
        quorum_retries=10**9,
    )
    client = ManagerClient(server.address(), connect_timeout=timedelta(seconds=60))


def quorum(step: int) -> None:
    client._quorum(
        group_rank=0,
        step=step,
        checkpoint_metadata="",
        shrink_only=False,
        timeout=timedelta(hours=1),
        commit_failures=0,
        init_sync=False,
    )


progress.step(0)
for step in range(1, 400):
    time.sleep(step_s)
    with progress.phase("communicate"):
        if rank == 0:
            quorum(step)
        dist.all_reduce(torch.ones(1000))
    progress.step(step)
    if rank == 0 and group == 0 and step == AT:
        (run / "fault-may-begin").touch()
