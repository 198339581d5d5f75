"""A GPT trained by replica groups that average periodically: DiLoCo, or MuLoCo with --inner muon.

    torchft_lighthouse --min_replicas 2                       once, on a host that all groups reach
    TORCHFT_LIGHTHOUSE=http://HOST:29510 REPLICA_GROUP_ID=0 NUM_REPLICA_GROUPS=2 \\
        torchrun --nproc-per-node=4 train.py --sync-every 30  for each group, with its own id
    python train.py                                           one group, no lighthouse needed

Any group may die and come back: it takes the state of a live one. Started again as a whole, the job continues from the
newest checkpoint, with any number of groups. docs/guides/diloco.md describes the method, options and files.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import across
import muon
import replica_group
import torch
import torch.distributed as dist
from lib import (
    checkpoint,
    data,
    huggingface,
    loop,
    metrics,
    model,
    options,
    ranks,
    reports,
    resume,
    stop,
    text,
    whole_file,
)
from outer import OuterLoop, OuterSettings, Record, ended
from quorum import Seat
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

NO_QUORUM = 75  # the exit code that sysexits.h calls a temporary failure
# Options that change no number of the training.
OF_THE_RUN = ("wire", "min_replicas", "start_wait", "timeout", "quorum_timeout")

parser = options.parser(__doc__)
options.add_gpt(parser)
options.add_compile(parser)
parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
parser.add_argument("--inside", choices=("ddp", "fsdp"), default="ddp", help="how the ranks of a group share the work")
outer_options = parser.add_argument_group("between the groups")
outer_options.add_argument("--inner", choices=("adamw", "muon"), default="adamw", help="inner optimizer")
outer_options.add_argument("--beta2", type=float, default=0.95, help="of AdamW; nearer 1 for groups of small batches")
outer_options.add_argument("--sync-every", type=int, default=30, metavar="H", help="inner steps between averages")
outer_options.add_argument("--fragments", type=int, default=1, help="parts of the model, averaged in turn")
outer_options.add_argument("--overlap", type=int, default=0, help="inner steps that an average may take, computing on")
outer_options.add_argument("--alpha", type=float, help="local share in the mix afterwards; else 0.5 with overlap, or 0")
outer_options.add_argument("--outer-lr", type=float, default=0.7)
outer_options.add_argument("--outer-momentum", type=float, default=0.9)
outer_options.add_argument("--bits", type=int, choices=(32, 8, 4, 2), default=32, help="of each value sent")
outer_options.add_argument("--top-k", type=float, default=0.0, metavar="SHARE", help="send only the largest; 0: all")
outer_options.add_argument("--wire", choices=("auto", "gloo", "nccl"), default="auto", help="auto: nccl on GPUs")
outer_options.add_argument("--min-replicas", type=int, help="groups in a quorum; else 2, or 1 of a single group")
outer_options.add_argument("--start-wait", type=float, default=60, help="seconds to wait for all groups at a start")
outer_options.add_argument("--timeout", type=float, default=60, help="seconds until a silent group is given up")
outer_options.add_argument("--quorum-timeout", type=float, default=3600, help="seconds without a quorum to exit 75")
parser.set_defaults(checkpoint_every=int(os.environ.get("KIT_CHECKPOINT_EVERY") or 1))
args = options.parse(parser)


class Leave(Exception):  # noqa: N818 - a way out, not an error
    """Raised while waiting for other groups: a stop was requested, the others have finished the job, or nobody comes."""

    def __init__(self, why: str, signal: int = 0) -> None:
        super().__init__(why)
        self.why, self.signal = why, signal


def waiting(
    world: ranks.Ranks, requests: stop.StopRequest, settings: OuterSettings
) -> Callable[[dict[str, int]], None]:
    """A function that all ranks of the group call, with their position, while they wait for a quorum. It may raise Leave."""
    # stood: the position at the last progress. since, looked: seconds of the monotonic clock.
    stood, since, looked = {"outer": -1}, 0.0, 0.0

    def look(position: dict[str, int]) -> None:
        nonlocal stood, since, looked
        if signal := requests.agreed():
            raise Leave("stopped", signal)
        now = time.monotonic()
        if position != stood:
            stood, since, looked = dict(position), now, now
        why = None
        # One rank asks the file system, once a second: all ranks of all groups would load it.
        if world.is_main_process and now - looked > 1:
            looked = now
            others = replica_group.furthest(args.checkpoint_dir)
            if others is not None and ended(others, settings):
                why = "finished"
            elif now - since > args.quorum_timeout:
                why = "no quorum"
        # Rank 0's answer goes to all ranks of the group, so that they leave together.
        if why := replica_group.agreed(why, world):
            raise Leave(why)

    return look


def train(world: ranks.Ranks) -> int:  # noqa: PLR0912, PLR0915 - one job, read from top to bottom
    """Train to the last outer step, or until a stop is requested. Returns the exit code."""
    # This group's id and the number of groups, from REPLICA_GROUP_ID and NUM_REPLICA_GROUPS.
    group = replica_group.from_environment()
    # Each group logs and saves in its own folder: groups share no collective in which they could agree on files.
    folder = args.run_dir / group.folder
    log = metrics.MetricsFile(folder, world)
    requests = stop.StopRequest(folder, world)
    profile = metrics.ProfilerTrace(folder, world, args.profile_steps, args.profile_ranks)
    ending = folder / "state" / "ended.json"
    if world.is_main_process:
        # A new start: the last one's end no longer counts.
        ending.unlink(missing_ok=True)

    def end(why: str, code: int) -> int:
        profile.close()
        if world.is_main_process:
            ending.write_text(json.dumps({"state": why, "code": code} | diloco.position) + "\n", encoding="utf-8")
        return code

    # ---- data: the global batch is shared out over the ranks of all groups ----

    # This rank's number among the ranks of all groups, and their count. `world` has the ranks of this group only.
    everywhere = group.everywhere(world)
    corpus = text.opened(args, world, log, folder)
    train_set, test_set = corpus.train, corpus.test
    # Windows of one micro-step on one rank. --batch-size counts the windows of a step over all groups.
    micro_batch = ranks.share("--batch-size", args.batch_size, everywhere, args.accumulate)

    # The position in the data follows from the inner step alone. So a group that joins or falls behind finds its place.
    def batches_from(step: int) -> Iterator[list[torch.Tensor]]:
        samples = step * args.batch_size
        where = {"seed": args.seed, "samples": samples, "accumulate": args.accumulate, "workers": args.workers}
        return data.batches(train_set, micro_batch, everywhere, **where)

    # ---- model: the same seed in all groups, so that they start with the same parameters ----

    torch.manual_seed(args.seed)
    shape = huggingface.chosen(args, corpus.vocabulary)
    # A tensor on the meta device has a shape and no memory. huggingface.begin() below gives each rank memory for its part.
    with torch.device("meta"):
        net = model.GPT(shape, apart=corpus.apart)
    flops_per_token, parameters = net.flops_per_token(), sum(p.numel() for p in net.parameters())
    half = {"fp32": None, "bf16": torch.bfloat16}[args.precision]
    if args.compile:
        net.compile_blocks()
    if args.inside == "fsdp":
        # Sharded over the ranks of this group, not over all groups: each group has a whole model, and no collective of
        # an inner step leaves the group.
        mesh = init_device_mesh(world.device.type, (world.ddp_world_size,))
        # Parameters are all-gathered in `half`; gradients are summed in float32.
        policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32)
        # Block by block: a block's parameters are gathered before it computes, and freed afterwards. `net` itself then shards
        # what is left: embedding, last norm, output layer.
        for part in (*net.blocks, net):
            fully_shard(part, mesh=mesh, mp_policy=policy)
    huggingface.begin(net, args, world.device)
    forward: nn.Module = net
    if args.inside == "ddp":
        device_ids = [world.device.index] if world.device.type == "cuda" else None
        # DDP over the group's ranks: its all-reduce of gradients stays in the group, too.
        forward = DistributedDataParallel(net, device_ids=device_ids)
    # Muon divides its matrices among these ranks.
    sharing = dist.group.WORLD if world.ddp_world_size > 1 else None
    pace = {"lr": args.lr, "weight_decay": args.weight_decay, "beta2": args.beta2}
    inner = muon.optimizers(net, args.inner, **pace, group=sharing)
    # factor(step) is between 0 and 1; the learning rate is --lr times this factor. It counts inner steps.
    factor = options.schedule(args, args.steps)

    # ---- the other groups ----

    # DiLoCo (Douillard et al. 2023, arXiv 2311.08105): each group makes --sync-every inner steps on its own. Then the groups
    # average how far their parameters have moved, and an outer optimizer (SGD with Nesterov momentum) takes this mean as its
    # gradient. So the groups exchange parameters once in --sync-every steps, and not gradients in every step.
    settings = OuterSettings(
        steps=args.steps,
        every=args.sync_every,
        fragments=args.fragments,
        delay=args.overlap,
        # With overlap the group has trained on while the average was under way: half of its own parameters stay, so
        # that this progress is not lost.
        alpha=args.alpha if args.alpha is not None else 0.5 if args.overlap else 0.0,
        lr=args.outer_lr,
        momentum=args.outer_momentum,
        bits=args.bits,
        top_k=args.top_k,
    )
    # For example, more fragments than layers: an error before the groups meet.
    settings.check(shape.layers)
    over_two_clusters = across.from_environment(args.timeout)
    if over_two_clusters and args.wire == "nccl":
        raise SystemExit("--wire nccl cannot be used over two clusters; leave it out")
    # Averages travel from the GPU by NCCL, or from host memory by gloo; over two clusters, from host memory by the relay.
    on_gpu = world.device.type == "cuda" and args.wire != "gloo" and not over_two_clusters
    wire = world.device if on_gpu else torch.device("cpu")
    least = args.min_replicas or min(2, group.count)
    # This rank's connections to the ranks of the same number in the other groups. These form one process group.
    seat = Seat(group, world, min_replicas=least, timeout=args.timeout, wire=wire, across=over_two_clusters)
    # Keeps a float32 copy of the parameters that all groups agree on, and averages with the other groups.
    diloco = OuterLoop(net, inner, seat, group, world, settings, wire, waiting(world, requests, settings))
    log.say(
        f"group {group.id} of {group.count}: {world.ddp_world_size} ranks on {world.nodes} nodes, {args.inside}, {world.backend}, "
        f"{parameters:,} parameters, {len(train_set):,} windows of {args.context} tokens, seed {args.seed}"
    )

    # ---- resume ----

    told = resume.told("diloco/train.py", args, without=OF_THE_RUN, data=corpus.told)
    how = {"keep": args.checkpoint_keep, "background": args.checkpoint_async, "saved": log.saved}
    checkpoints = checkpoint.Checkpoints(args.checkpoint_dir / group.folder, world, told, **how)

    def restore(resume_from: Path) -> None:
        resume.check(resume_from, told, world, log, equal=["inner", "inside"])
        # A checkpoint of this group also has its local parameters. One of another group gives only what all groups
        # share.
        own = resume_from.parent.name == group.folder
        ranks_then = checkpoint.marker(resume_from)["world_size"]
        if args.inside == "fsdp" and ranks_then != world.ddp_world_size:
            raise SystemExit(
                f"{resume_from} was written by {ranks_then} ranks a group and cannot be read by {world.ddp_world_size}."
            )
        if args.inside == "fsdp":
            # Each rank reads its own shards, also from another group's checkpoint: groups are sharded alike.
            path = resume_from / f"rank-{world.ddp_rank}.pt"
            state = torch.load(path, map_location="cpu", weights_only=True)
        else:
            # Rank 0 reads the state and broadcasts it to the ranks of this group.
            state = whole_file.load(resume_from / "rank-0.pt", world)
        diloco.load(state, own=own)
        position = diloco.position
        log.record(
            "resumed",
            f"resumed from {resume_from}, outer step {position['outer']}, step {position['step']}",
            **position,
            path=str(resume_from),
        )

    def save(*, last: bool = False) -> None:
        def start(target: Path) -> checkpoint.Finish:
            # Inside DDP all ranks have the same state, except for what is left to send of an average.
            writes = world.is_main_process or args.inside == "fsdp"
            state, position = diloco.save(), dict(diloco.position)
            if not writes:
                state = {"residuals": state["residuals"]}
            kept = checkpoints.kept(state, diloco.written_by_steps())

            def finish() -> None:
                whole = diloco.gathered(kept(), checkpoints.group)  # a collective: on all ranks
                checkpoint.write_model(target, world, net.described())
                if world.is_main_process:
                    reached = json.dumps(position | {"groups": group.count})
                    (target / replica_group.AT).write_text(reached + "\n", encoding="utf-8")
                if writes:
                    checkpoints.write(whole, target / f"rank-{world.ddp_rank}.pt")

            return finish

        with reports.progress.phase("save"):
            # The number must grow with every save. At the end several outer steps have the same inner step, hence
            # the sum.
            checkpoints.save(diloco.position["step"] + diloco.position["outer"], start, last=last)

    # From here on each group draws its own random numbers.
    checkpoint.seed_all(args.seed + 1_000_003 * group.id, world)
    if resume_from := replica_group.newest(args.checkpoint_dir, group, world, checkpoints):
        restore(resume_from)

    # ---- train ----

    # Tokens of one inner step of this group.
    speed = metrics.Speed(args.batch_size // group.count * args.context, flops_per_token, world, args.precision)
    log.started("diloco/train.py", world, speed, parameters=parameters, seed=args.seed, replica=group.id)
    batches, next_step = batches_from(diloco.position["step"]), diloco.position["step"]

    def loss_of(batch: list[torch.Tensor]) -> torch.Tensor:
        # (B, T) each: B windows of a micro-batch, T tokens of context. The targets are the tokens shifted by one.
        # non_blocking: a copy from pinned memory runs beside the GPU's work.
        tokens, targets = (tensor.to(world.device, non_blocking=True) for tensor in batch)
        with torch.autocast(world.device.type, dtype=half, enabled=half is not None):
            return forward(tokens, targets)  # (): the mean cross-entropy over B * T targets

    # DDP sets the order of its sums in the first backward pass. Run that pass before any that counts.
    if args.inside == "ddp":
        # DDP's backward pass is a collective: every rank of the group makes this pass.
        loss_of(next(iter(DataLoader(train_set, micro_batch)))).backward()
        net.zero_grad(set_to_none=True)

    def inner_step() -> tuple[torch.Tensor, torch.Tensor, float]:
        """Make an inner step. Returns the loss and gradient norm of this rank, and the learning rate."""
        # The loss stays on the GPU: reading it at every step would wait for the GPU.
        losses = torch.zeros((), device=world.device)  # (): the mean over the micro-batches
        for micro_step in range(args.accumulate):
            last_micro_step = micro_step == args.accumulate - 1
            # Gradients are exchanged within the group, in the last micro-step only.
            if args.inside == "fsdp":
                net.set_requires_gradient_sync(last_micro_step)
            with forward.no_sync() if args.inside == "ddp" and not last_micro_step else contextlib.nullcontext():
                # Divided, so that the gradients of the micro-batches add up to those of their mean.
                loss = loss_of(next(batches)) / args.accumulate
                loss.backward()
            losses += loss.detach()
        # Groups clip their own gradients: nothing crosses the group's border in an inner step.
        norm = nn.utils.clip_grad_norm_(net.parameters(), args.clip)
        lr = args.lr * factor(diloco.position["step"])
        for optimizer in inner:
            loop.set_pace(optimizer, lr=lr, weight_decay=args.weight_decay)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        # With FSDP each rank has the norm of its shards. full_tensor() is the norm over the group's ranks, a
        # collective.
        return losses, norm.full_tensor() if args.inside == "fsdp" else norm, lr

    def test() -> float:
        return loop.test_loss(net, test_set, args.test_windows, micro_batch, world, half)

    def met(others: Callable[[], Record | None]) -> Record | None:
        """The record of an average, if one was due. The wait for other groups is reported as `communicate`."""
        checkpoints.settle()  # an outer step writes what a save may still copy
        with reports.progress.phase("communicate"):
            return others()

    validated = diloco.position["step"]

    def outer_step(record: Record | None, began: float) -> None:
        nonlocal validated
        if record is None:
            return
        # The log counts the bytes of the whole group; each rank sends its part.
        record["bytes_sent"] = ranks.total(record["bytes_sent"], world=world)[0]
        # groups: how many took part in this average. A lost group lowers it, a returned one raises it.
        line = f"outer step {record['outer_step']}  step {record['step']}  groups {record['groups']}"
        log.record("outer", line, replica=group.id, **record, seconds_blocked=time.perf_counter() - began)
        if args.eval_every and record["step"] // args.eval_every > validated // args.eval_every:
            # The number of the checkpoint, as in save().
            number = record["step"] + record["outer_step"]
            loop.evaluate(test, record["step"], number, log, checkpoints, save, replica=group.id)
            speed.restart()
        validated = record["step"]
        if args.checkpoint_every and record["outer_step"] % args.checkpoint_every == 0:
            save()

    try:
        began = time.perf_counter()
        if not diloco.done:
            with reports.progress.phase("rendezvous"):
                # Groups start some seconds apart. Waiting for all is cheaper than letting a late group take the
                # others' state.
                opened = diloco.open(args.start_wait)
            outer_step(opened, began)
        speed.restart()
        reports.progress.step(diloco.position["step"])
        while not diloco.done:
            began = time.perf_counter()
            if diloco.position["step"] >= diloco.landing:  # resumed when an average, or one of the last ones, is due
                outer_step(met(diloco.synchronise), began)
                reports.progress.step(diloco.position["step"])
                continue
            if next_step != diloco.position["step"]:  # the others made outer steps without this group
                batches, next_step = batches_from(diloco.position["step"]), diloco.position["step"]
            profile.step(diloco.position["step"] + 1)
            # One inner step on the group's own data; then, every `sync_every` steps, an average with the other groups.
            losses, norm, lr = inner_step()
            next_step += 1
            speed.step()
            if args.log_every and next_step % args.log_every == 0:
                tokens = next_step * args.batch_size * args.context  # of all groups
                more = {"replica": group.id, "lr": lr, "gradient_norm": norm.item(), "tokens": tokens}
                log.step(next_step, losses.item(), speed, world, **more)
            began = time.perf_counter()
            # With --overlap an average starts here and lands inner steps later. Otherwise the group waits for it.
            outer_step(met(diloco.after_inner_step), began)
            reports.progress.step(diloco.position["step"])
            if signal := requests.agreed():
                raise Leave("stopped", signal)
    except Leave as leave:
        if leave.why == "stopped":
            save(last=True)
            position = diloco.position
            log.record(
                "stopped",
                f"stopped by signal {leave.signal} at step {position['step']}, saved",
                **position,
                signal=leave.signal,
            )
            return end("stopped", requests.finish(leave.signal, position["step"]))
        if leave.why == "no quorum":
            line = f"error: no quorum of {least} groups in {args.quorum_timeout:.0f} s (exit {NO_QUORUM})"
            log.record("no-quorum", line, **diloco.position)
            return end("no quorum", NO_QUORUM)
        # The others have finished: their last checkpoint is the result, and this group takes it over.
        if (resume_from := replica_group.newest(args.checkpoint_dir, group, world, checkpoints)) is None:
            raise SystemExit("the other groups are done, but none of their checkpoints is sound") from leave
        restore(resume_from)

    # ---- the end: all groups have the same parameters now ----

    save(last=True)
    seat.close()
    requests.close()
    # With overlap the model still holds a mix with the group's own parameters: replace it by the global ones.
    diloco.globals.put(range(args.fragments))
    # A collective with FSDP: the whole parameters are gathered for the digest.
    digest = diloco.globals.digest()
    with reports.progress.phase("evaluate"):
        test_loss = test()
    log.record(
        "final",
        f"done: test loss {test_loss:.4f} after {diloco.position['outer']} outer steps, parameters sha256 {digest}",
        replica=group.id,
        **diloco.position,
        test_loss=test_loss,
        sha256=digest,
        world_size=world.ddp_world_size,
        nodes=world.nodes,
        backend=world.backend,
    )
    return end("finished", 0)


if __name__ == "__main__":
    ranks.run(train, args.device)
