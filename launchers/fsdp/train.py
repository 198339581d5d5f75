"""A GPT on your own text with FSDP2 (fully_shard): parameters, gradients and optimizer state in shards over the ranks.

    torchrun --standalone --nproc-per-node=4 train.py --data books/ --steps 1000 --precision bf16
    torchrun --nnodes=2 --node-rank=0 --nproc-per-node=4 --master-addr=node1 --master-port=29500 train.py --replicate 2
    srun --ntasks-per-node=4 worker.sh python train.py --cpu-offload --recompute

Checkpoints are torch's distributed ones: each rank writes its shards (in the background with --checkpoint-async), and any
number of ranks can read them. For `lib`, options and files see docs/guides/training.md.
"""

from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from lib import (
    checkpoint,
    data,
    host_copy,
    huggingface,
    loop,
    memory,
    metrics,
    model,
    options,
    ranks,
    resume,
    stop,
    text,
)
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

parser = options.parser(__doc__)
options.add_gpt(parser)
options.add_compile(parser)
parser.add_argument(
    "--precision", choices=("fp32", "bf16"), default="fp32", help="of computing; sums and updates are fp32"
)
parser.add_argument(
    "--replicate", type=int, default=1, help="copies of the sharded model (HSDP); must divide the ranks"
)
parser.add_argument(
    "--keep-gathered", action="store_true", help="blocks stay whole from forward to backward: more memory, less traffic"
)
parser.add_argument("--cpu-offload", action="store_true", help="parameters, gradients and optimizer in host memory")
parser.add_argument("--recompute", action="store_true", help="compute activations again in backward, to save memory")
args = options.parse(parser)


def train(world: ranks.Ranks) -> int:  # noqa: PLR0915 - one job, read from top to bottom
    """Train to the last step, or until a stop is requested. Returns the exit code."""
    log = metrics.MetricsFile(args.run_dir, world)
    requests = stop.StopRequest(args.run_dir, world)
    profile = metrics.ProfilerTrace(args.run_dir, world, args.profile_steps, args.profile_ranks)
    corpus = text.opened(args, world, log)
    train_set, test_set = corpus.train, corpus.test
    micro_batch = ranks.share("--batch-size", args.batch_size, world, args.accumulate)

    # ---- model: built without memory; then each rank gets memory for its shards ----

    if world.ddp_world_size % args.replicate:
        raise SystemExit(f"--replicate {args.replicate} does not divide {world.ddp_world_size} ranks.")
    # HSDP: `replicate` copies of the model, each sharded over the remaining ranks. One copy is plain FSDP.
    size = (args.replicate, world.ddp_world_size // args.replicate)
    # In shape (copies, shards). Gradients are reduce-scattered along `shard`, then all-reduced along `replicate`. Where
    # `shard` is the ranks of a node, only this all-reduce crosses the network, with 1 / shards of the gradients.
    mesh = init_device_mesh(world.device.type, size, mesh_dim_names=("replicate", "shard"))
    half = {"fp32": None, "bf16": torch.bfloat16}[args.precision]
    # Parameters are all-gathered in `half`, which halves the traffic. Gradients are summed in float32: in bf16 a sum over
    # many ranks loses small gradients. Offloaded shards are in pinned memory: only
    # from there can they be copied to the GPU while it computes.
    sharding = {
        "mesh": mesh if args.replicate > 1 else mesh["shard"],
        "mp_policy": MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32),
        "offload_policy": CPUOffloadPolicy(pin_memory=world.backend == "nccl") if args.cpu_offload else OffloadPolicy(),
    }
    # Bytes of host memory. The difference shows that building the model took a shard and not the whole model.
    before = metrics.resident()
    torch.manual_seed(args.seed)
    shape = huggingface.chosen(args, corpus.vocabulary)
    # On the meta device: no rank ever holds the whole model.
    with torch.device("meta"):
        net = model.GPT(shape, recompute=args.recompute, apart=corpus.apart)
    # Counted before sharding: afterwards a rank sees its own shards.
    flops_per_token, parameters = net.flops_per_token(), sum(p.numel() for p in net.parameters())
    if args.compile:
        net.compile_blocks()
    # Each block is gathered only for its forward and backward. The rest (embedding, norm, head) is one unit.
    for block in net.blocks:
        # A block is all-gathered before its forward, freed, and all-gathered again before its backward. With
        # --keep-gathered it is not freed between. After backward its gradients are reduce-scattered: each rank gets the
        # mean for its own shard.
        fully_shard(block, reshard_after_forward=not args.keep_gathered, **sharding)
    # Last, the rest. `net` is the root: a call of it starts the first all-gather, and prefetches the next block's
    # while one computes.
    fully_shard(net, **sharding)
    # Now give each rank memory for its shards, and fill them: random weights, or those of --init-from.
    huggingface.begin(net, args, torch.device("cpu") if args.cpu_offload else world.device)
    built = ranks.largest(metrics.most_resident() - before, world=world)[0]
    # Made after the sharding: so its two moments for each parameter are shards, too.
    optimizer = loop.adamw(net.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    # factor(step) is between 0 and 1; the learning rate is --lr times this factor.
    factor = options.schedule(args, args.steps)
    log.say(
        f"{world.ddp_world_size} ranks on {world.nodes} nodes, {world.backend}, {size[0]} copies in {size[1]} shards, "
        f"{parameters:,} parameters, {len(train_set):,} windows of {args.context} tokens, seed {args.seed}"
    )

    # ---- resume ----

    told = resume.told("fsdp/train.py", args, data=corpus.told)
    position = {"step": 0, "samples": 0}  # optimizer steps, and sequences over all ranks

    def mine() -> dict[str, Any]:
        """This rank's state: its shards of weights and optimizer, its position and its generators."""
        weights, updates = get_state_dict(net, optimizer)
        return {"model": weights, "optimizer": updates} | checkpoint.rank_state(world, position)

    in_memory = memory.InMemory(args, lambda: (mine(), None))
    checkpoints, resume_from = resume.begun(args, world, told, log, in_memory=in_memory)
    if found := in_memory.found:
        weights, updates = get_state_dict(net, optimizer)
        weights = memory.fill(weights, found.state["model"])
        updates = memory.fill(updates, found.state["optimizer"])
        set_state_dict(net, optimizer, model_state_dict=weights, optim_state_dict=updates)
        position = found.state["at"]
        checkpoint.set_rng_state(found.state["rng"])
        resume.say(log, None, position["step"])
    elif resume_from:
        # The shards of this run say which parts of the files to read. So the number of ranks may have changed.
        weights, updates = get_state_dict(net, optimizer)
        # Fills the tensors of `weights` and `updates` in place: each rank reads only the bytes of its own shards.
        dcp.load({"model": weights, "optimizer": updates}, checkpoint_id=resume_from)
        set_state_dict(net, optimizer, model_state_dict=weights, optim_state_dict=updates)
        position = checkpoint.read_rank(resume_from, world, seed=args.seed)
        resume.say(log, resume_from, position["step"])

    def save(*, last: bool = False) -> None:
        def start(folder: Path) -> checkpoint.Finish:
            weights, updates = get_state_dict(net, optimizer)  # this rank's shards
            written_by_step = host_copy.written_by_step(net, optimizer)
            kept = checkpoints.kept({"model": weights, "optimizer": updates}, written_by_step)
            own = checkpoint.rank_state(world, position)

            def finish() -> None:
                # All ranks plan together what goes where, on a group of their own.
                writer = checkpoints.distributed_writer(folder)
                dcp.save(kept(), storage_writer=writer, process_group=checkpoints.group)
                checkpoints.write_rank(folder, own)
                checkpoint.write_model(folder, world, net.described())

            return finish

        checkpoints.save(position["step"], start, last=last)

    # ---- train ----

    where = {"seed": args.seed, "samples": position["samples"], "accumulate": args.accumulate, "workers": args.workers}
    # Without end, epoch after epoch. `samples` is what earlier starts have read, so that a resumed run reads no
    # sequence twice.
    batches = data.batches(train_set, micro_batch, world, **where)
    # Tokens of one optimizer step, over all ranks: sequences x tokens of each.
    speed = metrics.Speed(args.batch_size * args.context, flops_per_token, world, args.precision)
    log.started("fsdp/train.py", world, speed, parameters=parameters, seed=args.seed, built_bytes=int(built))

    def test() -> float:
        return loop.test_loss(net, test_set, args.test_windows, micro_batch, world)

    steps = loop.Steps(
        args,
        world,
        log,
        requests,
        profile,
        checkpoints,
        save,
        test,
        position=position,
        samples=args.batch_size,
        speed=speed,
        in_memory=in_memory,
    )
    while steps.go_on():
        # The loss stays on the GPU: reading it at every step would wait for the GPU.
        losses = torch.zeros((), device=world.device)
        for micro_step in range(args.accumulate):
            # Gradients are reduce-scattered only in the last micro-step.
            net.set_requires_gradient_sync(micro_step == args.accumulate - 1)
            # (B, T) each: B windows of a micro-batch, T tokens of context. The targets are the tokens shifted by one.
            tokens, targets = (tensor.to(world.device, non_blocking=True) for tensor in next(batches))
            loss = net(tokens, targets) / args.accumulate
            # From the last block to the first: gathers a block, computes its gradients, and frees it again.
            loss.backward()
            losses += loss.detach()
        # Each rank holds shards; full_tensor() is the norm over all of them.
        norm = nn.utils.clip_grad_norm_(net.parameters(), args.clip).full_tensor()
        lr = loop.set_pace(optimizer, lr=args.lr * factor(position["step"]), weight_decay=args.weight_decay)
        # Each rank updates its own shards. The next forward pass gathers the new parameters.
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        steps.done(losses.item, lr=lr, gradient_norm=norm)

    # ---- the end ----

    return steps.end()


if __name__ == "__main__":
    ranks.run(train, args.device)
