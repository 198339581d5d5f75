"""A small GPT on your own text with DistributedDataParallel, on CPUs (gloo) or GPUs (nccl).

    torchrun --standalone --nproc-per-node=4 train_gpt.py --data books/ --steps 1000
    srun --ntasks-per-node=4 worker.sh python train_gpt.py --data prepared/ --precision bf16 --compile
    python train_gpt.py

Started again with the same checkpoint folder, it continues where it stopped. For `lib`, options and files see
docs/guides/training.md.
"""

import contextlib
from pathlib import Path
from typing import Any

import torch
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
    whole_file,
)
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

parser = options.parser(__doc__)
options.add_gpt(parser)
options.add_compile(parser)
parser.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="fp32", help="fp16 scales the loss")
args = options.parse(parser)


def train(world: ranks.Ranks) -> int:  # noqa: PLR0915 - one job, read from top to bottom
    """Train to the last step, or until a stop is requested. Returns the exit code."""
    log = metrics.MetricsFile(args.run_dir, world)
    requests = stop.StopRequest(args.run_dir, world)
    profile = metrics.ProfilerTrace(args.run_dir, world, args.profile_steps, args.profile_ranks)
    log.say(
        f"{world.ddp_world_size} ranks on {world.nodes} nodes, {world.backend}, {world.device.type}, seed {args.seed}"
    )

    # ---- data and model ----

    corpus = text.opened(args, world, log)
    train_set, test_set = corpus.train, corpus.test
    micro_batch = ranks.share("--batch-size", args.batch_size, world, args.accumulate)
    # The same seed on all ranks: each draws the same weights.
    torch.manual_seed(args.seed)
    shape = huggingface.chosen(args, corpus.vocabulary)
    # Built without memory first. Then each rank fills in the weights: random ones, or those of --init-from.
    with torch.device("meta"):
        net = model.GPT(shape, apart=corpus.apart)
    huggingface.begin(net, args, world.device)
    # DDP wants the index of the rank's GPU, and None for a model in host memory.
    device_ids = [world.device.index] if world.device.type == "cuda" else None
    if args.compile:
        # Block by block, so that DDP can send the gradients of a block while those of earlier blocks are computed.
        net.compile_blocks()
    # Replicates the model: each rank has all parameters. In backward DDP all-reduces the gradients to their mean over the
    # ranks, in buckets of 25 MB, while earlier layers still compute theirs.
    ddp = DistributedDataParallel(net, device_ids=device_ids)
    optimizer = loop.adamw(net.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    # factor(step) is between 0 and 1; the learning rate is --lr times this factor.
    factor = options.schedule(args, args.steps)
    # float16 has 5 exponent bits: small gradients would become 0. The scaler multiplies the loss, and skips a step with an
    # infinite gradient. bf16 has float32's range and needs no scaling.
    scaler = torch.amp.GradScaler(world.device.type, enabled=args.precision == "fp16")
    half = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[args.precision]
    parameters = sum(p.numel() for p in net.parameters())
    log.say(f"{parameters:,} parameters, {len(train_set):,} windows of {args.context} tokens")

    def loss_of(batch: list[torch.Tensor]) -> torch.Tensor:
        # (B, T) each: B windows of a micro-batch, T tokens of context. The targets are the tokens shifted by one.
        tokens, targets = (tensor.to(world.device, non_blocking=True) for tensor in batch)
        # Autocast computes products of matrices in `half`. Parameters, gradients and optimizer state stay float32. With
        # targets the model returns its mean loss over the B * T tokens, a scalar.
        with torch.autocast(world.device.type, dtype=half, enabled=half is not None):
            return ddp(tokens, targets)

    # One backward pass whose gradients are dropped. DDP orders its buckets after the first pass, and the order of sums
    # depends on the buckets. So a resumed run has the buckets of an uninterrupted one.
    loss_of(next(iter(DataLoader(train_set, micro_batch)))).backward()
    optimizer.zero_grad(set_to_none=True)

    # ---- resume ----

    told = resume.told("ddp/train_gpt.py", args, data=corpus.told)
    # The position in the run, saved in each checkpoint. A resumed run continues reading its data from here.
    position = {"step": 0, "samples": 0}  # optimizer steps, and sequences over all ranks
    parts = {"model": net, "optimizer": optimizer, "scaler": scaler}

    def whole() -> dict[str, Any]:
        """What all ranks have alike."""
        return {name: part.state_dict() for name, part in parts.items()} | {"at": dict(position)}

    in_memory = memory.InMemory(args, lambda: ({"rng": checkpoint.rng_state()}, whole()))
    checkpoints, resume_from = resume.begun(args, world, told, log, in_memory=in_memory)
    if found := in_memory.found:
        for name, part in parts.items():
            part.load_state_dict(found.shared[name])
        position = found.shared["at"]
        checkpoint.set_rng_state(found.state["rng"])
        resume.say(log, None, position["step"])
    elif resume_from:
        state = whole_file.load(resume_from / "state.pt", world)
        for name, part in parts.items():
            part.load_state_dict(state[name])
        position = state["at"]
        checkpoint.restore_rng(state["rng"], world, seed=args.seed, step=position["step"])
        resume.say(log, resume_from, position["step"])

    def save(*, last: bool = False) -> None:
        def start(folder: Path) -> checkpoint.Finish:
            # Every rank has the whole state: rank 0 writes it, with the random state of each rank.
            mine = checkpoint.rng_state()
            state = whole() if world.is_main_process else {}
            kept = checkpoints.kept(state, host_copy.written_by_step(net, optimizer))

            def finish() -> None:
                rng = checkpoints.gathered(mine)  # a collective: on all ranks
                checkpoint.write_model(folder, world, net.described())
                if world.is_main_process:
                    checkpoints.write(kept() | {"rng": rng}, folder / "state.pt")

            return finish

        checkpoints.save(position["step"], start, last=last)

    # ---- train ----

    where = {"seed": args.seed, "samples": position["samples"], "accumulate": args.accumulate, "workers": args.workers}
    batches = data.batches(train_set, micro_batch, world, **where)
    # Tokens of one optimizer step, over all ranks: sequences x tokens of each.
    speed = metrics.Speed(args.batch_size * args.context, net.flops_per_token(), world, args.precision)
    log.started("ddp/train_gpt.py", world, speed, parameters=parameters, seed=args.seed)

    def test() -> float:
        # `net` and not `ddp`: the test needs no gradients, so DDP has nothing to do.
        return loop.test_loss(net, test_set, args.test_windows, micro_batch, world, half)

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
            # Gradients are all-reduced only in the last micro-step. Before it they add up on this rank.
            last_micro_step = micro_step == args.accumulate - 1
            with contextlib.nullcontext() if last_micro_step else ddp.no_sync():
                loss = loss_of(next(batches)) / args.accumulate
                scaler.scale(loss).backward()
            losses += loss.detach()
        # Clipping needs unscaled gradients: undo the loss scaling of fp16 first. bf16 and fp32 are never scaled.
        scaler.unscale_(optimizer)
        # After the all-reduce all ranks have equal gradients, so each computes the same norm, without a collective.
        norm = nn.utils.clip_grad_norm_(net.parameters(), args.clip)
        lr = loop.set_pace(optimizer, lr=args.lr * factor(position["step"]), weight_decay=args.weight_decay)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        steps.done(losses.item, lr=lr, gradient_norm=norm)

    # ---- the end ----

    return steps.end()


if __name__ == "__main__":
    ranks.run(train, args.device)
