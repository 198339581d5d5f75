"""Image classification with DistributedDataParallel, on CPUs (gloo) or GPUs (nccl).

On one machine, and on one of two nodes (static rendezvous; the kit gives each node its rank):

    torchrun --standalone --nproc-per-node=4 train.py
    torchrun --nnodes=2 --node-rank=0 --nproc-per-node=4 --master-addr=node1 --master-port=29500 train.py

or one Slurm task for each rank; the kit's worker script sets RANK, WORLD_SIZE, LOCAL_RANK and MASTER_* from SLURM_*:

    srun --ntasks-per-node=4 worker.sh python train.py --epochs 20

or as a single process: python train.py. `lib` is next to this file in a run folder. In the checkout, set
PYTHONPATH=launchers.

Without --data it trains on the digits that scikit-learn ships. Started again with the same checkpoint folder, it
continues where it stopped. docs/guides/training.md lists the files that it reads and writes. lib/stop.py handles TERM and USR1.
"""

import contextlib
import time
from pathlib import Path
from typing import Any

import torch
from lib import (
    checkpoint,
    data,
    host_copy,
    loop,
    memory,
    metrics,
    model,
    options,
    ranks,
    reports,
    resume,
    stop,
    whole_file,
)
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset

# ---- options ----

parser = options.parser(__doc__)
parser.add_argument("--data", type=Path, help="MNIST files, or train/ and test/ with a folder a class")
parser.add_argument("--image-size", type=int, default=32, help="pixels a side, for class folders")
parser.add_argument("--width", type=int, default=32, help="channels of the first convolution")
parser.add_argument("--epochs", type=int, default=15)
parser.add_argument("--batch-size", type=int, default=64, help="images for each optimizer step, over all ranks")
parser.add_argument("--accumulate", type=int, default=1, help="micro-steps for each optimizer step")
parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw", help="sgd: with momentum 0.9")
options.add_pace(parser, lr=3e-3, warmup=20, weight_decay=0.01)
parser.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="fp32", help="fp16 scales the loss")
options.add_compile(parser)
parser.add_argument("--workers", type=int, default=0, help="loader processes for each rank")
args = options.parse(parser)


def train(world: ranks.Ranks) -> int:  # noqa: PLR0912, PLR0915 - one job, read from top to bottom
    """Train to the last epoch, or until a stop is requested. Returns the exit code."""
    log = metrics.MetricsFile(args.run_dir, world)
    requests = stop.StopRequest(args.run_dir, world)
    log.say(
        f"{world.ddp_world_size} ranks on {world.nodes} nodes, {world.backend}, {world.device.type}, seed {args.seed}"
    )

    # ---- data: each rank takes its part of each epoch; the seed sets the order ----

    train_set, test_set, classes = data.images(args.data, args.image_size)
    micro_batch = ranks.share("--batch-size", args.batch_size, world, args.accumulate)
    # Every rank gets the same number of images. A rank with one more step would wait for ever in its all-reduce.
    sampler = data.ResumableSampler(len(train_set), world.ddp_world_size, world.ddp_rank, seed=args.seed)
    # Pinned host memory: only from there can `non_blocking=True` copy to the GPU while the GPU computes.
    loading = {"num_workers": args.workers, "pin_memory": world.device.type == "cuda"}
    # Making an iterator draws a random number. It must not come from the model's generator, which a resume restores.
    draws = torch.Generator().manual_seed(args.seed)
    train_loader = data.Loader(train_set, micro_batch, sampler=sampler, drop_last=True, generator=draws, **loading)
    # The test counts each image once, so a rank takes every world_size-th image, without padding.
    mine = Subset(test_set, range(world.ddp_rank, len(test_set), world.ddp_world_size))
    # 256 images: a test keeps no activations for a backward pass, so its batches can be larger than the training's.
    test_loader = data.Loader(mine, 256, generator=draws, **loading)
    # Images that do not fill the last batch of an epoch are left out; the next epoch has another order.
    steps_per_epoch = len(train_set) // args.batch_size
    if steps_per_epoch == 0:
        raise SystemExit(f"--batch-size {args.batch_size} is larger than the training set of {len(train_set)} images.")

    # ---- model, optimizer, schedule ----

    # The same seed on all ranks: each draws the same weights.
    torch.manual_seed(args.seed)
    # train_set[0] is (image, class), and an image is (channels, height, width).
    net = model.ConvNet(channels=train_set[0][0].shape[0], classes=classes, width=args.width).to(world.device)
    # DDP wants the index of the rank's GPU, and None for a model in host memory.
    device_ids = [world.device.index] if world.device.type == "cuda" else None
    if args.compile:
        net.compile()  # in place, so that DDP still sends gradients while others are computed
    # Replicates the model: each rank has all parameters. In backward DDP all-reduces the gradients to their mean over the
    # ranks, in buckets of 25 MB, while earlier layers still compute theirs.
    ddp = DistributedDataParallel(net, device_ids=device_ids)
    optimizer: torch.optim.Optimizer
    if args.optimizer == "adamw":
        # beta2 0.999 is torch's default. The GPT programs use 0.95, as GPT-3 and Llama do.
        optimizer = loop.adamw(net.parameters(), lr=args.lr, weight_decay=args.weight_decay, beta2=0.999)
    else:
        groups = loop.decay_groups(net.parameters(), args.weight_decay)
        optimizer = torch.optim.SGD(groups, lr=args.lr, momentum=0.9)
    last_step = args.epochs * steps_per_epoch
    # factor(step) is between 0 and 1; the learning rate is --lr times this factor.
    factor = options.schedule(args, last_step)
    # float16 has 5 exponent bits: small gradients would become 0. The scaler multiplies the loss, and skips a step with an
    # infinite gradient. bf16 has float32's range and needs no scaling.
    scaler = torch.amp.GradScaler(world.device.type, enabled=args.precision == "fp16")
    half = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[args.precision]

    def loss_of(images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        # images (B, channels, height, width), targets (B,), scores (B, classes); B is the micro-batch.
        # Autocast computes convolutions and products of matrices in `half`. Parameters, gradients and optimizer state
        # stay float32.
        with torch.autocast(world.device.type, dtype=half, enabled=half is not None):
            return nn.functional.cross_entropy(ddp(images), targets)

    # One backward pass whose gradients are dropped. DDP orders its buckets after the first pass, and the order of sums
    # depends on the buckets. So a resumed run has the buckets of an uninterrupted one.
    images, targets = next(iter(DataLoader(train_set, micro_batch)))
    loss_of(images.to(world.device), targets.to(world.device)).backward()
    optimizer.zero_grad(set_to_none=True)

    # ---- resume ----

    speed = metrics.Speed(args.batch_size, None, world, args.precision, unit="images")
    log.started("ddp/train.py", world, speed, parameters=sum(p.numel() for p in net.parameters()), seed=args.seed)
    told = resume.told("ddp/train.py", args, data=data.images_told(args.data))
    # The position in the run: optimizer steps, epochs, images of this epoch over all ranks. And the sum of this rank's losses.
    position = {"step": 0, "epoch": 0, "images": 0}
    # float64: in float32 a sum of thousands of losses loses its last digits.
    losses = torch.zeros((), dtype=torch.float64, device=world.device)
    parts = {"model": net, "optimizer": optimizer, "scaler": scaler}

    def whole() -> dict[str, Any]:
        """What all ranks have alike."""
        return {name: part.state_dict() for name, part in parts.items()} | {"at": dict(position)}

    in_memory = memory.InMemory(args, lambda: ({"rng": checkpoint.rng_state(), "losses": losses}, whole()))
    checkpoints, resume_from = resume.begun(args, world, told, log, in_memory=in_memory)
    if found := in_memory.found:
        for name, part in parts.items():
            part.load_state_dict(found.shared[name])
        position = found.shared["at"]
        losses += found.state["losses"]
        checkpoint.set_rng_state(found.state["rng"])
        resume.say(log, None, position["step"])
    elif resume_from:
        state = whole_file.load(resume_from / "state.pt", world)
        for name, part in parts.items():
            part.load_state_dict(state[name])
        position = state["at"]
        # With another number of ranks, each takes the mean of the saved sums. Then the epoch's mean loss is still
        # right.
        same_ranks = len(state["losses"]) == world.ddp_world_size
        losses += state["losses"][world.ddp_rank] if same_ranks else sum(state["losses"]) / len(state["losses"])
        checkpoint.restore_rng(state["rng"], world, seed=args.seed, step=position["step"])
        line = f"resumed from {resume_from}, epoch {position['epoch'] + 1}, step {position['step']}"
        log.record("resumed", line, step=position["step"], path=str(resume_from))

    def save(*, last: bool = False) -> None:
        def start(folder: Path) -> checkpoint.Finish:
            # Every rank sends its random state and its losses. Rank 0 writes them with the model, which all ranks have.
            mine = checkpoint.rng_state(), losses.item()
            state = whole() if world.is_main_process else {}
            # A batch norm's statistics are not among these: the next forward pass writes them.
            kept = checkpoints.kept(state, host_copy.written_by_step(net, optimizer))

            def finish() -> None:
                rng, sums = zip(*checkpoints.gathered(mine), strict=True)  # a collective: on all ranks
                if world.is_main_process:
                    checkpoints.write(kept() | {"rng": list(rng), "losses": list(sums)}, folder / "state.pt")

            return finish

        checkpoints.save(position["step"], start, last=last)

    # ---- train ----

    def test() -> tuple[float, float]:
        """Loss and accuracy over the whole test set."""
        net.eval()
        loss = correct = 0.0
        with torch.inference_mode():
            for images, targets in test_loader:
                # `net` and not `ddp`: ranks may have different numbers of batches, so a forward pass must not
                # contain a collective.
                with torch.autocast(world.device.type, dtype=half, enabled=half is not None):  # as in training
                    scores = net(images.to(world.device)).float()  # (256 or fewer, classes)
                loss += nn.functional.cross_entropy(scores, targets.to(world.device), reduction="sum").item()
                correct += (scores.argmax(1) == targets.to(world.device)).sum().item()
        net.train()
        # Sums over the ranks, not means: the last rank may have fewer images.
        loss, correct, seen = ranks.total(loss, correct, len(mine), world=world)
        return loss / seen, correct / seen

    profile = metrics.ProfilerTrace(args.run_dir, world, args.profile_steps, args.profile_ranks)
    reports.progress.step(position["step"])
    trained, seconds = 0, 0.0  # images over all ranks and time in training steps, since this start
    while position["epoch"] < args.epochs:
        # Set the order of this epoch, and skip the images that it has already trained on.
        sampler.set_epoch(position["epoch"])
        sampler.skip(position["images"])
        batches, began = data.reported(train_loader), time.perf_counter()
        speed.restart()
        for _ in range(position["images"] // args.batch_size, steps_per_epoch):
            profile.step(position["step"] + 1)
            step_loss = torch.zeros((), dtype=torch.float64, device=world.device)
            # One optimizer step: `accumulate` micro-batches, whose gradients add up.
            for micro_step in range(args.accumulate):
                # images (B, channels, height, width), targets (B,)
                images, targets = (tensor.to(world.device, non_blocking=True) for tensor in next(batches))
                # DDP all-reduces gradients in backward; only the last micro-step needs that.
                last_micro_step = micro_step == args.accumulate - 1
                with contextlib.nullcontext() if last_micro_step else ddp.no_sync():
                    loss = loss_of(images, targets)
                    scaler.scale(loss / args.accumulate).backward()
                step_loss += loss.detach() / args.accumulate
            # The loss stays on the GPU: reading it at every step would wait for the GPU.
            losses += step_loss
            # Clip unscaled gradients: undo the loss scaling of fp16 first.
            scaler.unscale_(optimizer)
            # After the all-reduce all ranks have equal gradients, so each computes the same norm, without a
            # collective.
            norm = nn.utils.clip_grad_norm_(net.parameters(), args.clip)
            lr = loop.set_pace(optimizer, lr=args.lr * factor(position["step"]), weight_decay=args.weight_decay)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            position["step"] += 1
            position["images"] += args.batch_size
            trained += args.batch_size
            speed.step()

            if args.log_every and position["step"] % args.log_every == 0:
                log.step(position["step"], step_loss.item(), speed, world, lr=lr, gradient_norm=norm.item())
            code = loop.after_step(
                requests, log, profile, save, position["step"], every=args.checkpoint_every, in_memory=in_memory
            )
            if code is not None:
                return code
        seconds += time.perf_counter() - began

        (loss_sum,) = ranks.total(losses.item(), world=world)
        train_loss = loss_sum / (world.ddp_world_size * steps_per_epoch)
        with reports.progress.phase("evaluate"):
            test_loss, accuracy = test()
        position |= {"epoch": position["epoch"] + 1, "images": 0}
        losses.zero_()
        log.record(
            "epoch",
            f"epoch {position['epoch']}/{args.epochs}  train loss {train_loss:.4f}  test loss {test_loss:.4f}  "
            f"accuracy {accuracy:.2%}  {trained / seconds:.0f} images/s on {world.ddp_world_size} ranks",
            epoch=position["epoch"],
            step=position["step"],
            train_loss=train_loss,
            test_loss=test_loss,
            accuracy=accuracy,
            images_per_second=trained / seconds,
        )
        # Save the best epoch so far and the last one, or every epoch where --checkpoint-every is 0.
        best = checkpoints.is_best(position["step"], test_loss)
        if best or not args.checkpoint_every or position["epoch"] == args.epochs:
            with reports.progress.phase("save"):
                save(last=position["epoch"] == args.epochs)

    # ---- the end ----

    with reports.progress.phase("save"):
        checkpoints.wait()
    requests.close()
    profile.close()
    if not trained:
        with reports.progress.phase("evaluate"):
            test_loss, accuracy = test()
    rate = trained / seconds if seconds else 0.0
    log.record(
        "final",
        f"done: accuracy {accuracy:.2%} after {args.epochs} epochs, "
        f"world size {world.ddp_world_size} on {world.nodes} nodes, {rate:.0f} images/s",
        accuracy=accuracy,
        test_loss=test_loss,
        epochs=args.epochs,
        step=position["step"],
        world_size=world.ddp_world_size,
        nodes=world.nodes,
        backend=world.backend,
        images_per_second=rate,
    )
    return 0


if __name__ == "__main__":
    ranks.run(train, args.device)
