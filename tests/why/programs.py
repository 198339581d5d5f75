"""Cases of `kit why` in which the program ended the run."""

from __future__ import annotations

from tests.why.case import ADMIN, AGAIN, CODE, GROUP, JOB, NODE, NODES_2, TWO, Case, raised, said

# As Ray 2.60 raises it in the driver.
RAY_FRAMES = (
    '  File "/workspace/train.py", line 41, in main\n    ray.get([one.step.remote() for one in trainers])\n'
    '  File "/opt/venv/lib/python3.11/site-packages/ray/_private/worker.py", line 1055, in get_objects\n    raise value\n'
)
CASES: dict[str, Case] = {
    "module-missing": Case(rule="module-missing", verdict=JOB, says="no module 'numpyy'", program="import numpyy\n"),
    "torch-missing": Case(rule="torch-missing", verdict=JOB, says="has no torch", program="import torch\n"),
    "torchrun-missing": Case(
        rule="torchrun-missing",
        verdict=JOB,
        says="no torch, so torchrun does not start",
        job=NODES_2,
        program="pass\n",
        options=("--no-container", "--set", "shape=torchrun"),
    ),
    "import-name": Case(
        rule="import-name", verdict=JOB, says="cannot import name 'nothing'", program="from json import nothing\n"
    ),
    "syntax": Case(rule="syntax", verdict=CODE, says="SyntaxError.*program.py:1", program="def f(:\n    pass\n"),
    "file-missing": Case(
        rule="file-missing",
        verdict=JOB,
        says="/data/train.bin",
        program="def load():\n    return open('/data/train.bin')\nload()\n",
    ),
    "permission": Case(
        rule="permission",
        verdict=JOB,
        says="may not .*/data/secret|Permission denied",
        program="raise PermissionError(13, 'Permission denied', '/data/secret')\n",
    ),
    "read-only": Case(
        rule="read-only",
        verdict=JOB,
        says="read-only",
        program="open('/sys/kernel/kit', 'w')\n",
        options=("--set", "container.runtime=bubblewrap"),
    ),
    "disk-full": Case(
        rule="disk-full",
        verdict=JOB,
        says="no space is left",
        program="with open('/dev/full', 'w') as file:\n    file.write('x' * 100000)\n",
    ),
    "too-many-files": Case(
        rule="too-many-files",
        verdict=CODE,
        says="too many open files",
        program=(
            "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\nheld = "
            "[open('/dev/null') for _ in range(100)]\n"
        ),
    ),
    "host-memory": Case(
        rule="host-memory",
        verdict=JOB,
        says="ran out of memory",
        program="import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\nbytearray(8 << 30)\n",
    ),
    "killed": Case(
        rule="killed", verdict=AGAIN, says="was killed.*unknown", program="import os\nos.kill(os.getpid(), 9)\n"
    ),
    "oom-killed": Case(
        rule="oom-killed",
        verdict=JOB,
        says="out of memory.*killed",
        program="import os\nwith open(os.environ['KIT_RUN_DIR'] + '/logs/task-0.log', 'a') as file:\n"
        "    file.write('slurmstepd: error: Detected 1 oom_kill event in StepId=8.3. Some of the "
        "step tasks have been OOM Killed.\\n')\n"
        "os.kill(os.getpid(), 9)\n",
        printed=True,
    ),
    "segfault": Case(
        rule="segfault", verdict=CODE, says="segmentation fault", program="import ctypes\nctypes.string_at(0)\n"
    ),
    "aborted": Case(rule="aborted", verdict=CODE, says="abort", program="import os\nos.abort()\n"),
    # Python's own report of the signal follows what a C++ library says of it.
    "aborted-with-a-reason": Case(
        rule="aborted",
        verdict=CODE,
        says="abort.*stoi",
        program=(
            "import os\nos.write(2, b'terminate called after throwing an instance of \\'std::invalid_argument\\'\\n')\n"
            "os.write(2, b'  what():  stoi\\n')\nos.abort()\n"
        ),
    ),
    "freed-at-exit": Case(
        rule="freed-at-exit",
        verdict=CODE,
        says="thread of a native library",
        program="import ctypes\nctypes.CDLL('libstdc++.so.6')._ZSt9terminatev()\n",
    ),
    "bus-error": Case(
        rule="bus-error",
        verdict=ADMIN,
        says="bus error",
        program="import os, signal\nos.kill(os.getpid(), signal.SIGBUS)\n",
    ),
    "illegal-instruction": Case(
        rule="illegal-instruction",
        verdict=JOB,
        says="instruction",
        program="import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n",
    ),
    "wrong-interpreter": Case(
        rule="wrong-interpreter", verdict=JOB, says="python9", job='python = "python9"\n', program="pass\n"
    ),
    "script-missing": Case(
        rule="script-missing", verdict=JOB, says="can't open file", act="no_script", program="pass\n"
    ),
    "arguments": Case(
        rule="arguments",
        verdict=JOB,
        says="unrecognized arguments: --lrr",
        job='args = ["--lrr", "0.1"]\n',
        program="import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr')\nparser.parse_args()\n",
    ),
    "no-network": Case(
        rule="no-network",
        verdict=JOB,
        says="no network",
        program="import urllib.request\nurllib.request.urlopen('http://data.example.invalid/train.bin')\n",
    ),
    "assertion": Case(
        rule="assertion",
        verdict=CODE,
        says="AssertionError: 3 layers .*program.py:3 in build",
        program=(
            "def build(layers):\n    heads = 4\n    assert layers % heads == 0, f'{layers} layers for "
            "{heads} stages'\n\nbuild(3)\n"
        ),
    ),
    "exception": Case(
        rule="exception",
        verdict=CODE,
        says="KeyError: 'lr' at program.py:2 in rate",
        program="def rate(options):\n    return options['lr']\n\nrate({})\n",
    ),
    "exception-chained": Case(
        rule="exception",
        verdict=CODE,
        says="ValueError: bad configuration at program.py:7 in read",
        program="def parse(text):\n    return int(text)\ndef read(text):\n    try:\n        return parse(text)\n"
        "    except ValueError as error:\n        raise ValueError('bad configuration') from error\n\nread('x')\n",
    ),
    "exit-code": Case(
        rule="exit-code",
        verdict=CODE,
        says="exit code 7.*no data in shard 3",
        program="import sys\nprint('fatal: no data in shard 3', file=sys.stderr)\nsys.exit(7)\n",
    ),
    "exit-silent": Case(
        rule="exit-silent", verdict=CODE, says="exit code 9 and printed nothing", program="import sys\nsys.exit(9)\n"
    ),
    "nan-loss": Case(
        rule="nan-loss",
        verdict=CODE,
        says="not a number|nan",
        program="loss = float('nan')\nif loss != loss:\n    raise FloatingPointError('loss is nan at step 40')\n",
    ),
    "port-in-use": Case(
        rule="port-in-use",
        verdict=AGAIN,
        says="port .*in use",
        program="import socket\nfirst = socket.create_server(('127.0.0.1', 0))\nsocket.create_server(first.getsockname())\n",
    ),
    # torch.
    "shape-mismatch": Case(
        rule="shape-mismatch",
        verdict=CODE,
        says=r"mat1 and mat2 .*4x8 and 4x4.* at program.py:5 in step",
        torch=True,
        program="import torch\n\ndef step():\n    weights = torch.zeros(4, 4)\n    return torch.zeros(4, 8) @ weights\n\nstep()\n",
    ),
    "dtype-mismatch": Case(
        rule="dtype-mismatch",
        verdict=CODE,
        says="dtype",
        torch=True,
        program="import torch\ntorch.zeros(4, 4) @ torch.zeros(4, 4, dtype=torch.bfloat16)\n",
    ),
    "state-dict": Case(
        rule="state-dict",
        verdict=JOB,
        says="checkpoint .* not of this model",
        torch=True,
        program="import torch\ntorch.nn.Linear(4, 4).load_state_dict(torch.nn.Linear(4, 8).state_dict())\n",
    ),
    "checkpoint-damaged": Case(
        rule="checkpoint-damaged",
        verdict=JOB,
        says="checkpoint is damaged",
        torch=True,
        program=(
            "import torch, os\ntorch.save({'a': torch.zeros(999)}, 'half.pt')\nos.truncate('half.pt', "
            "999)\ntorch.load('half.pt')\n"
        ),
    ),
    "backward-nan": Case(
        rule="nan-loss",
        verdict=CODE,
        says="nan",
        torch=True,
        program="import torch\ntorch.autograd.set_detect_anomaly(True)\nx = torch.tensor(-1.0, requires_grad=True)\n"
        "torch.sqrt(x).backward()\n",
    ),
    "unused-parameters": Case(
        rule="unused-parameters",
        verdict=CODE,
        says="took no part in the loss",
        torch=True,
        job=TWO,
        program=GROUP + "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "class Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.a, self.b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)\n    def "
        "forward(self, x):\n        return self.a(x)\n"
        "net = DDP(Net())\nfor _ in range(2):\n    net(torch.zeros(2, 2)).sum().backward()\n",
    ),
    "collective-mismatch": Case(
        rule="collective-mismatch",
        verdict=CODE,
        says="different collectives",
        torch=True,
        job='[env]\nTORCH_DISTRIBUTED_DEBUG = "DETAIL"\n' + TWO,
        program=GROUP
        + "if rank == 0:\n    dist.all_reduce(torch.zeros(2))\nelse:\n    dist.broadcast(torch.zeros(2), 0)\n",
    ),
    "peer-gone": Case(
        rule="exception",
        verdict=CODE,
        says="rank 1 .*ZeroDivisionError",
        torch=True,
        job=TWO,
        program=GROUP + "def work():\n    return 1 / 0\nif rank == 1:\n    try:\n        work()\n    finally:\n"
        "        dist.destroy_process_group()\n        time.sleep(2)\n"
        "for _ in range(100):\n    dist.all_reduce(torch.zeros(2))\n",
    ),
    "peer-gone-silently": Case(
        rule="peer-gone",
        verdict=CODE,
        says="lost its connection to another rank",
        torch=True,
        job=TWO,
        program=GROUP + "if rank == 1:\n    os._exit(0)\nfor _ in range(100):\n    dist.all_reduce(torch.zeros(2))\n",
    ),
    "collective-timeout": Case(
        rule="collective-timeout",
        verdict=CODE,
        says="waited .* for the other ranks",
        torch=True,
        job=TWO,
        program=GROUP + "if rank == 1:\n    time.sleep(60)\ndist.all_reduce(torch.zeros(2))\n",
    ),
    "rendezvous-timeout": Case(
        rule="rendezvous-timeout",
        verdict=JOB,
        says="rendezvous",
        torch=True,
        job=TWO,
        program="import datetime, os, time\nimport torch.distributed as dist\nif os.environ['RANK'] == '1':\n    time.sleep(60)\n"
        "dist.init_process_group('gloo', timeout=datetime.timedelta(seconds=3))\n",
    ),
    "data-worker-killed": Case(
        rule="data-worker-killed",
        verdict=JOB,
        says="data loader worker",
        torch=True,
        program=(
            "import os\nfrom torch.utils.data import DataLoader, Dataset\n\nclass Data(Dataset):\n    "
            "def __len__(self):\n        return 4\n"
            "    def __getitem__(self, at):\n        os.kill(os.getpid(), 9)\n\nlist(DataLoader(Data(), "
            "num_workers=1))\n"
        ),
    ),
    "device-mismatch": Case(
        rule="device-mismatch",
        verdict=CODE,
        says="two devices",
        torch=True,
        program="import torch\ntorch.zeros(2, device='meta') + torch.zeros(2)\n",
    ),
    # What takes a GPU: the real message, printed.
    "cuda-memory": Case(
        rule="cuda-memory",
        verdict=JOB,
        says="GPU 0 is out of memory: 20.00 MiB .*79.15 GiB",
        printed=True,
        program=raised(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.15 GiB of "
            "which 13.25 MiB is free. Process 2101 has 79.13 GiB memory in use. Of the allocated memory 77.20 GiB is allocated by "
            "PyTorch, and 1.31 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
        ),
    ),
    "cuda-assert": Case(
        rule="cuda-assert",
        verdict=CODE,
        says="device-side assert",
        printed=True,
        program=raised(
            "RuntimeError: CUDA error: device-side assert triggered\nCUDA kernel errors might be "
            "asynchronously reported at some other API call, so the stacktrace below might be incorrect."
        ),
    ),
    "cuda-memory-access": Case(
        rule="cuda-memory-access",
        verdict=CODE,
        says="illegal memory access",
        printed=True,
        program=raised("RuntimeError: CUDA error: an illegal memory access was encountered"),
    ),
    "cuda-hardware": Case(
        rule="cuda-hardware",
        verdict=NODE,
        says="GPU of n\\d.*ECC",
        printed=True,
        program=raised("RuntimeError: CUDA error: uncorrectable ECC error encountered"),
    ),
    "cuda-driver": Case(
        rule="cuda-driver",
        verdict=JOB,
        says="driver",
        printed=True,
        program=raised(
            "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver "
            "from http://www.nvidia.com/Download/index.aspx"
        ),
    ),
    "cuda-ordinal": Case(
        rule="cuda-ordinal",
        verdict=JOB,
        says="does not see",
        printed=True,
        program=raised("RuntimeError: CUDA error: invalid device ordinal"),
    ),
    "cuda-architecture": Case(
        rule="cuda-architecture",
        verdict=JOB,
        says="not built for this GPU",
        printed=True,
        program=raised("RuntimeError: CUDA error: no kernel image is available for execution on the device"),
    ),
    "nccl-timeout": Case(
        rule="nccl-timeout",
        verdict=CODE,
        says="ALLREDUCE.*4411",
        printed=True,
        program=said(
            "[rank0]:[E1122 10:11:12.123456789 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=4411, OpType=ALLREDUCE, NumelIn=4194304, NumelOut=4194304, Timeout(ms)=600000) ran for 600012 "
            "milliseconds before timing out.\n",
            134,
        ),
    ),
    "nccl-peer-gone": Case(
        rule="nccl-peer-gone",
        verdict=CODE,
        says="lost its connection to another rank",
        printed=True,
        program=raised(
            "torch.distributed.DistBackendError: NCCL error in: "
            "/pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2006, remote "
            "process exited or there was a network error, NCCL version 2.21.5\nncclRemoteError: A call failed possibly due to a "
            "network error or a remote process exiting prematurely.\nLast error:\nsocketProgress: Connection closed by remote peer "
            "n2<41234>"
        ),
    ),
    "nccl-interface": Case(
        rule="nccl-interface",
        verdict=JOB,
        says="no socket interface",
        printed=True,
        program=raised(
            "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, internal "
            "error - please report this issue to the NCCL developers, NCCL version 2.21.5\nncclInternalError: Internal check "
            "failed.\nLast error:\nBootstrap : no socket interface found"
        ),
    ),
    "nccl-system": Case(
        rule="nccl-system",
        verdict=NODE,
        says="NCCL.*ibv_reg_mr|NCCL",
        printed=True,
        program=raised(
            "torch.distributed.DistBackendError: NCCL error in: "
            "/pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, unhandled system "
            "error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5\nncclSystemError: "
            "System call (e.g. socket, malloc) or "
            "external library call failed or device error.\nLast error:\nCall to ibv_create_cq "
            "failed with error Cannot allocate memory"
        ),
    ),
    "deepspeed-batch": Case(
        rule="deepspeed-batch",
        verdict=JOB,
        says="train_batch_size",
        printed=True,
        program=raised(
            "AssertionError: Check batch related parameters. train_batch_size is not equal to "
            "micro_batch_per_gpu * gradient_acc_step "
            "* world_size 32 != 4 * 1 * 4",
            frames='  File "/usr/lib/python3/dist-packages/deepspeed/runtime/config.py", line 1034, in _batch_assertion\n'
            "    assert train_batch == micro_batch * grad_acc * self.world_size\n",
        ),
    ),
    "deepspeed-config": Case(
        rule="deepspeed-config",
        verdict=JOB,
        says="DeepSpeed",
        printed=True,
        program=raised(
            "deepspeed.runtime.config_utils.DeepSpeedConfigError: Either a ds_config or a config file has to be given",
            frames='  File "/usr/lib/python3/dist-packages/deepspeed/__init__.py", line 140, in init\n    DeepSpeedConfig()\n',
        ),
    ),
    "ray-memory": Case(
        rule="ray-memory",
        verdict=JOB,
        says="192.0.2.2.* used 22.54GB of 23.54GB",
        printed=True,
        program=raised(
            "ray.exceptions.OutOfMemoryError: 1 worker(s) were killed due to the node running low on memory. Memory on the node "
            "(IP: 192.0.2.2, ID: 6438ca693d58c0af6924d46ef481d66a081b4fbf890e1661492ea1d2) was 22.54GB used / 23.54GB limit "
            "(0.957519)\nOOM kill reason: Memory usage 24202145792B exceeded threshold of 24012676300B (95.0% of 25276502016B "
            "limit)",
            frames=RAY_FRAMES,
        ),
    ),
    "ray-worker-killed": Case(
        rule="ray-worker-killed",
        verdict=CODE,
        says="without a Python exception",
        printed=True,
        program=raised(
            "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tclass_name: Trainer\n"
            "\tactor_id: 7f88dce278816d5e30e00a7401000000\n\tpid: 4054\n\tip: 192.0.2.2\n"
            "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker "
            "unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) the process was "
            "killed by the OOM killer due to high memory usage, (2) ray stop --force was called, or (3) the worker crashed "
            "unexpectedly due to SIGSEGV or another unexpected error.",
            frames=RAY_FRAMES,
        ),
    ),
    "ray-task-killed": Case(
        rule="ray-worker-killed",
        verdict=CODE,
        says="without a Python exception",
        printed=True,
        program=raised(
            "ray.exceptions.WorkerCrashedError: The worker died unexpectedly while executing this task. Check "
            "python-core-worker-*.log files for more information.",
            frames=RAY_FRAMES,
        ),
    ),
    "ray-actor-killed-by-program": Case(
        rule="ray-actor-killed-by-program",
        verdict=CODE,
        says="ended by ray.kill",
        printed=True,
        program=raised(
            "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tclass_name: Trainer\n"
            "\tactor_id: 978d220b9d93f56cf8fcc53001000000\nThe actor is dead because it was killed by `ray.kill`.\n"
            "The actor never ran - it was cancelled before it started running.",
            frames=RAY_FRAMES,
        ),
    ),
    "ray-node-lost": Case(
        rule="ray-node-lost",
        verdict=AGAIN,
        says="a Ray node died",
        printed=True,
        program=raised(
            "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tclass_name: Trainer\n"
            "\tactor_id: 0037f8d7a4d31e6ea8ee55b201000000\nThe actor is dead because its owner has died. Owner Id: "
            "01000000ffffffffffffffffffffffffffffffffffffffffffffffff Owner Ip address: 192.0.2.2 Owner worker exit type: "
            "SYSTEM_ERROR Worker exit detail: Owner's node has crashed.",
            frames=RAY_FRAMES,
        ),
    ),
    "ray-head-lost": Case(
        rule="ray-head-lost",
        verdict=AGAIN,
        says="Ray's head",
        printed=True,
        program=said(
            "[2026-11-23 23:53:33,746 E 2214 4107] rpc_client.h:204: Failed to connect to GCS within 60 seconds. GCS may have been "
            "killed. It's either GCS is terminated by `ray stop` or is killed unexpectedly. If it is killed unexpectedly, see the "
            "log file gcs_server.out. The program will terminate.\n"
        ),
    ),
    "ray-actor-raised": Case(
        rule="nan-loss",
        verdict=CODE,
        says="not a number",
        printed=True,
        program=raised(
            "ray.exceptions.RayTaskError(ValueError): \x1b[36mray::Trainer.step()\x1b[39m (pid=10543, ip=192.0.2.2, "
            "actor_id=90dad3516ccdd947e26ed5b001000000, repr=<train.Trainer object at 0x7f8f380a8bd0>)\n"
            '  File "/workspace/train.py", line 12, in step\n    raise ValueError("loss is nan at step 7")\n'
            "ValueError: loss is nan at step 7",
            frames=RAY_FRAMES,
        ),
    ),
    "megatron-arguments": Case(
        rule="megatron-arguments",
        verdict=JOB,
        says="Megatron.*world size",
        printed=True,
        program=raised(
            "AssertionError: world size (8) is not divisible by total_model_size (tensor_model_parallel_size=4 * "
            "pipeline_model_parallel_size=3)",
            frames='  File "/opt/megatron/megatron/training/arguments.py", line 391, in validate_args\n'
            "    assert args.world_size % total_model_size == 0\n",
        ),
    ),
    "shm-full": Case(
        rule="shm-full",
        verdict=ADMIN,
        says="/dev/shm",
        printed=True,
        program=raised(
            "RuntimeError: DataLoader worker (pid 811) is killed by signal: Bus error. It is "
            "possible that dataloader's workers are "
            "out of shared memory. Please try to raise your shared memory limit."
        ),
    ),
}
