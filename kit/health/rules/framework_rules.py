"""Rules for programs of torch, NCCL, DeepSpeed, Megatron and Ray: on the end of a rank's log."""

from __future__ import annotations

from kit.health.answer import ADMIN, AGAIN, CODE, JOB, LOGS, NODE, WITHOUT_NODE, Rule

_EDIT = "kit render {job_file}"
_PEER = "find out why the other rank ended: its log, its node"

CUDA = (
    Rule(
        id="cuda-memory",
        verdict=JOB,
        pattern=(
            r"CUDA out of memory\. Tried to allocate (?P<asked>[\d.]+ \w+)\. GPU (?P<gpu>\d+) has a total "
            r"capacity of (?P<total>[\d.]+ \w+)"
            r"(?:.*?which (?P<free>[\d.]+ \w+) is free)?(?:.*?(?P<reserved>[\d.]+ \w+) is reserved by "
            r"PyTorch but unallocated)?"
        ),
        says="GPU {gpu} is out of memory: {asked} asked for, {free} free of {total}",
        advice="smaller batches, activation checkpointing or sharding; with much reserved but unallocated ({reserved}) set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    ),
    Rule(
        id="cuda-memory",
        verdict=JOB,
        pattern=r"(?:CUDA|HIP) out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED",
        says="a GPU is out of memory",
        advice="smaller batches, activation checkpointing or sharding; look who else uses the GPU",
    ),
    Rule(
        id="cuda-assert",
        verdict=CODE,
        pattern=r"device-side assert triggered",
        says="a kernel's device-side assert failed, such as of an index out of range: a token id above the vocabulary",
        advice="run again with --debug (CUDA_LAUNCH_BLOCKING=1): the stack then names the line",
        next="kit submit {job_file} --debug",
    ),
    Rule(
        id="cuda-memory-access",
        verdict=CODE,
        pattern=r"an illegal memory access was encountered|misaligned address",
        says="a kernel made an illegal memory access",
        next="kit submit {job_file} --debug",
        advice="run again with --debug (CUDA_LAUNCH_BLOCKING=1); the same node every time is a bad GPU",
    ),
    Rule(
        id="cuda-hardware",
        verdict=NODE,
        next=WITHOUT_NODE,
        pattern=(
            r"(?P<what>uncorrectable (?:NVLink|ECC) error|GPU is lost|fallen off the bus|hardware stack "
            r"error|NVRM: Xid[^\n]*|unspecified launch failure)"
        ),
        says="a GPU of {node} is broken: {what}",
        advice="leave the node out, and tell the administrator",
    ),
    Rule(
        id="cuda-driver",
        verdict=JOB,
        next=_EDIT,
        pattern=(
            r"(?P<what>Found no NVIDIA driver|driver on your system is too old|CUDA driver version is "
            r"insufficient|no CUDA-capable device is detected|No CUDA GPUs are available)"
        ),
        says="no GPU, or its driver does not fit: {what}",
        advice="ask for GPUs (resources.gpus_per_node); in a container NVIDIA_VISIBLE_DEVICES and the driver's version decide",
    ),
    Rule(
        id="cuda-ordinal",
        verdict=JOB,
        pattern=r"invalid device ordinal",
        next=_EDIT,
        says="the program asks for a GPU that it does not see",
        advice="take LOCAL_RANK as the device; one rank a GPU",
    ),
    Rule(
        id="cuda-architecture",
        verdict=JOB,
        pattern=r"no kernel image is available for execution",
        next=_EDIT,
        says="this build of torch, or of an extension, was not built for this GPU",
        advice="use an image that is",
    ),
)

COLLECTIVES = (
    Rule(
        id="collective-mismatch",
        verdict=CODE,
        pattern=r"(?P<what>Detected mismatch between collectives on ranks[^\n]*)",
        says="ranks call different collectives",
        advice="all ranks have to call the same collectives, in one order, on tensors of one shape",
    ),
    Rule(
        id="collective-mismatch",
        verdict=CODE,
        pattern=r"op\.preamble\.length <= op\.nbytes\. (?P<received>\d+) vs (?P<expected>\d+)",
        says="ranks call one collective with tensors of different sizes: {received} bytes came, {expected} were expected",
        advice="all ranks have to call the same collectives, in one order, on tensors of one shape",
    ),
    Rule(
        id="nccl-timeout",
        verdict=CODE,
        pattern=(
            r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<sequence>\d+), "
            r"OpType=(?P<what>\w+).*?Timeout\(ms\)=(?P<limit>\d+)"
        ),
        says="it waited {limit} ms for the other ranks in {what} #{sequence}",
        victim=True,
        advice="one rank did not come to this collective: it hung, failed, or called another one",
    ),
    Rule(
        id="nccl-interface",
        verdict=JOB,
        pattern=r"Bootstrap : no socket interface found",
        next=_EDIT,
        says="NCCL found no socket interface of the name that it was given",
        advice="unset NCCL_SOCKET_IFNAME, or name one that exists",
    ),
    Rule(
        id="nccl-peer-gone",
        verdict=CODE,
        victim=True,
        advice=_PEER,
        pattern=(
            r"ncclRemoteError|remote process exited or there was a network error|socketProgress: "
            r"Connection closed by remote peer(?P<peer> \S+)?"
        ),
        says="it lost its connection to another rank{peer}",
    ),
    Rule(
        id="nccl-system",
        verdict=NODE,
        next="kit submit {job_file} --debug",
        pattern=r"(?:ncclSystemError|ncclUnhandledCudaError|ncclInternalError)(?:[\s\S]*?Last error:\n(?P<what>[^\n]+))?",
        says="NCCL failed: {what}",
        advice="run again with --debug (NCCL_DEBUG=INFO); memlock and RDMA devices are the usual causes",
    ),
    Rule(
        id="rendezvous-timeout",
        verdict=JOB,
        pattern=(
            r"RendezvousTimeoutError|DistStoreError: (?P<what>Timed out[^\n]*)|wait timeout after \d+ms"
            r"|Timed out after \d+ seconds waiting for clients"
            r"|The client socket has timed out after|(?:DistNetworkError|TCPStore)[^\n]*timed "
            r"out"
        ),
        says="the rendezvous timed out: not all ranks came",
        advice="one rank did not start in time: look for the log that has no first line",
        victim=True,
    ),
    Rule(
        id="collective-timeout",
        verdict=CODE,
        victim=True,
        pattern=(
            r"Timed out waiting (?P<limit>\d+)ms for (?:recv|send) operation|Timeout waiting for"
            r"|Application timeout caused pair closure"
        ),
        says="it waited {limit} ms for the other ranks in a collective",
        advice="one rank did not come: it hung, was slow, or called another collective",
    ),
    Rule(
        id="peer-gone",
        verdict=CODE,
        victim=True,
        advice=_PEER,
        pattern=r"Connection (?:reset|closed) by peer|Connection refused|Broken pipe|failed to (?:send|recv), got",
        says="it lost its connection to another rank",
    ),
)

RULES = (
    Rule(
        id="deepspeed-batch",
        verdict=JOB,
        next=_EDIT,
        pattern=r"Check batch related parameters\. (?P<what>[^\n]+)",
        says="DeepSpeed: {what}",
        advice="train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps * world size",
    ),
    Rule(
        id="deepspeed-config",
        verdict=JOB,
        next=_EDIT,
        pattern=r"(?:^|\.)DeepSpeedConfigError: (?P<what>[^\n]+)",
        says="DeepSpeed refuses its configuration: {what}",
        advice="correct [deepspeed] in the job file",
    ),
    Rule(
        id="data-worker-killed",
        verdict=JOB,
        pattern=(
            r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:is killed by signal: (?P<what>Killed"
            r"|Segmentation fault|Aborted|Terminated)|exited unexpectedly)"
        ),
        says="a data loader worker ended: {what}",
        advice="dmesg of the node says whether memory was short; fewer workers need less of it: num_workers",
    ),
    Rule(
        id="shm-full",
        verdict=ADMIN,
        pattern=r"out of shared memory|insufficient shared memory|unable to (?:open|mmap|write) .*shared memory",
        says="/dev/shm is full: data loader workers share tensors there",
        next="kit submit {job_file} --set preflight.shm_gb=8",
        advice="fewer workers, or a bigger /dev/shm; preflight.shm_gb refuses nodes that have too little",
    ),
    Rule(
        id="shape-mismatch",
        verdict=CODE,
        pattern=(
            r"^RuntimeError: (?P<what>mat1 and mat2 shapes cannot be multiplied[^\n]*|The size of tensor "
            r"a [^\n]*must match[^\n]*|shape '\[[^\n]*is invalid for input of size[^\n]*"
            r"|Sizes of tensors must match[^\n]*|Expected size for first two dimensions[^\n]*|[^\n]*size "
            r"mismatch, got[^\n]*)"
        ),
        says="{what}",
        advice="two tensors do not fit: print their shapes before this line",
    ),
    Rule(
        id="dtype-mismatch",
        verdict=CODE,
        pattern=(
            r"^RuntimeError: (?P<what>[^\n]*(?:must have the same dtype|expected scalar type|expected m1 "
            r"and m2 to have the same dtype)[^\n]*)"
        ),
        says="{what}",
        advice="cast one of them, or run the step under autocast",
    ),
    Rule(
        id="device-mismatch",
        verdict=CODE,
        pattern=(
            r"Expected all tensors to be on the same device|is not on the expected device|is on [\w:]+ "
            r"device, (?:but|different)|[Uu]nhandled FakeTensor Device|on the same device"
        ),
        says="tensors of one operation are on two devices",
        advice="move them with .to(device), buffers of the model too",
    ),
    Rule(
        id="state-dict",
        verdict=JOB,
        pattern=r"Error\(s\) in loading state_dict for (?P<what>\w+)",
        says="the checkpoint is not of this model ({what})",
        advice="point the job at the checkpoint of this model, or begin anew",
        next=_EDIT,
    ),
    Rule(
        id="checkpoint-damaged",
        verdict=JOB,
        next="ls -l {run_dir}/checkpoints",
        pattern=(
            r"PytorchStreamReader failed|unexpected EOF, expected|invalid magic number|Ran out of input"
            r"|InvalidHeaderDeserialization|SafetensorError"
        ),
        says="a checkpoint is damaged, or was not written to its end",
        advice="remove it: the run continues from the one before",
    ),
    Rule(
        id="unused-parameters",
        verdict=CODE,
        pattern=r"Expected to have finished reduction in the prior iteration",
        says="DDP: parameters took no part in the loss",
        advice="use all of them, or pass find_unused_parameters=True",
    ),
)

# The messages are those of Ray 2.60.
RAY = (
    Rule(
        id="ray-memory",
        verdict=JOB,
        pattern=(
            r"killed due to the node running low on memory\. Memory on the node \(IP: (?P<ip>[^,]+),[^)]*\) "
            r"was (?P<used>[\d.]+ ?GB) used / (?P<limit>[\d.]+ ?GB) limit"
        ),
        says="Ray killed a worker, because its node ({ip}) used {used} of {limit} of memory",
        advice="fewer actors on a node (more num_cpus for each), smaller batches, or more memory (resources.memory)",
        next=_EDIT,
    ),
    Rule(
        id="ray-actor-killed-by-program",
        verdict=CODE,
        pattern=r"The actor is dead because it was killed by `ray\.kill`",
        says="the program called an actor that it had ended by ray.kill",
        advice="call it before ray.kill, or make a new actor",
    ),
    Rule(
        id="ray-node-lost",
        verdict=AGAIN,
        pattern=r"The actor (?:is dead|died) because its node has died|Owner's node has crashed",
        says="a Ray node died, and its actors with it",
        advice="the log of that node's role says why; max_restarts of the actor, or [retry] of the job, starts it again",
        next=LOGS,
        victim=True,
    ),
    Rule(
        id="ray-worker-killed",
        verdict=CODE,
        pattern=(
            r"The actor is dead because its worker process has died|"
            r"^ray\.exceptions\.WorkerCrashedError: The worker died unexpectedly"
        ),
        says="a Ray worker process ended without a Python exception: by a signal, by os._exit, or by the kernel's OOM killer",
        advice="look for its last words among the lines above that Ray copied from the workers",
    ),
    Rule(
        id="ray-head-lost",
        verdict=AGAIN,
        pattern=r"Failed to connect to GCS within \d+ seconds",
        says="Ray's head (its GCS server) is gone",
        advice="the log of the head's role says why",
        next=LOGS,
        victim=True,
    ),
)

# Chosen by the file that raised the error: the message itself is Megatron's own.
MEGATRON = Rule(
    id="megatron-arguments",
    verdict=JOB,
    pattern=r"^(?:AssertionError|ValueError|RuntimeError): (?P<what>.+)",
    next=_EDIT,
    says="Megatron refuses its arguments: {what}",
    advice="correct [megatron] in the job file",
)
# The order of all rules: more specific ones come first.
ALL = (*CUDA, *COLLECTIVES, *RAY, *RULES)
