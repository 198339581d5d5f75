"""A GPT on your own text with DeepSpeed: ZeRO 1, 2 or 3, with offload to host memory, as ds_config.json says.

    srun --ntasks-per-node=4 worker.sh python train.py --data books/ --steps 1000 --ds-config ds_config.json
    torchrun --standalone --nproc-per-node=4 train.py --ds-config ds_config.json
    python train.py --ds-config ds_config.json

One process runs for each GPU. Its launcher sets RANK, LOCAL_RANK, WORLD_SIZE and MASTER_*: no ssh, no mpi4py, no deepspeed
launcher. Batch sizes, precision, clipping, ZeRO and offload are in the configuration. Without an "optimizer" there, the program
uses torch's AdamW with --lr and --weight-decay, and the schedule of the other programs.
For `lib`, options and files see docs/guides/training.md.
"""

import json
import os
import warnings
from pathlib import Path

import torch
from lib import checkpoint, data, huggingface, loop, metrics, model, options, ranks, resume, stop, text

TAG = "deepspeed"  # DeepSpeed's folder in a checkpoint
parser = options.parser(__doc__)
options.add_gpt(parser)
parser.add_argument("--ds-config", type=Path, default=Path(__file__).with_name("ds_config.json"))
# The configuration has these. With two places for one number, the numbers would differ one day.
parser.set_defaults(batch_size=None, accumulate=None, clip=None)
args = options.parse(parser)
if args.batch_size or args.accumulate or args.clip:
    parser.error("--batch-size, --accumulate and --clip are set in the configuration, by DeepSpeed's names")


def train(world: ranks.Ranks) -> int:  # noqa: PLR0915 - one job, read from top to bottom
    """Train to the last step, or until a stop is requested. Returns the exit code."""
    # DeepSpeed picks CPU or GPU when it is imported, and reads the environment first.
    os.environ.setdefault("DS_ACCELERATOR", world.device.type)
    os.environ.setdefault("LOCAL_RANK", "0")  # DeepSpeed needs it, and a single process has none
    import deepspeed  # noqa: PLC0415
    from later import Later  # noqa: PLC0415

    # On CPU DeepSpeed would compile a kernel that only inference uses, and would fail in an image without a compiler.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # DeepSpeed 0.19 calls functions by names that torch 2.13 warns about, at every call.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")

    log = metrics.MetricsFile(args.run_dir, world)
    requests = stop.StopRequest(args.run_dir, world)
    profile = metrics.ProfilerTrace(args.run_dir, world, args.profile_steps, args.profile_ranks)
    deepspeed.init_distributed(dist_backend=world.backend)  # uses the existing process group
    # DeepSpeed's own file, read here only to see which parts it leaves to this program.
    config = json.loads(args.ds_config.read_text(encoding="utf-8"))

    # ---- data, model, engine ----

    corpus = text.opened(args, world, log)
    train_set, test_set = corpus.train, corpus.test
    # The same seed on all ranks: each draws the same weights.
    torch.manual_seed(args.seed)
    shape = huggingface.chosen(args, corpus.vocabulary)
    # Without memory: ZeRO 3 must never hold the whole model. It also gives the counts below before anything is
    # sharded.
    with torch.device("meta"):
        net = model.GPT(shape, apart=corpus.apart)
    flops_per_token, parameters = net.flops_per_token(), sum(p.numel() for p in net.parameters())
    # ZeRO 1 shards the optimizer state, 2 also the gradients, 3 also the parameters.
    if config.get("zero_optimization", {}).get("stage") == 3:
        # Each parameter is sharded as soon as it is made, and gathered once for its first weights.
        with deepspeed.zero.Init(config_dict_or_path=config):
            net = model.GPT(shape, apart=corpus.apart, drawn=False)
        put = huggingface.setter(net, args)
        for name, parameter in net.named_parameters():
            with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
                if world.is_main_process:
                    put(name, parameter.data, 0, len(parameter))
    else:
        huggingface.begin(net, args, world.device)
    own = None  # this program's own optimizer, with its schedule
    if "optimizer" not in config:
        # 0.95, as GPT-3 and Llama do; torch's default is 0.999.
        groups = loop.decay_groups(net.parameters(), args.weight_decay)
        own = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95))
    else:
        # The matrices get the weight decay of the configuration's optimizer.
        groups = loop.decay_groups(net.parameters(), 0.0)
        del groups[0]["weight_decay"]
    # factor(step) is between 0 and 1; the learning rate is --lr times this factor.
    factor = options.schedule(args, args.steps)
    # The engine wraps the model: forward, backward, gradient accumulation and the optimizer step are its own.
    engine, *_ = deepspeed.initialize(model=net, model_parameters=groups, optimizer=own, config=config)
    # Sequences of a step over all ranks, and of one micro-step on one rank.
    batch_size, micro_batch = engine.train_batch_size(), engine.train_micro_batch_size_per_gpu()
    accumulate = engine.gradient_accumulation_steps()
    precision = "fp32" if next(engine.module.parameters()).dtype == torch.float32 else "bf16"
    log.say(
        f"{world.ddp_world_size} ranks on {world.nodes} nodes, {world.backend}, ZeRO {engine.zero_optimization_stage()}, "
        f"{parameters:,} parameters, batch {batch_size} = {micro_batch} x {accumulate} x {world.ddp_world_size}, seed {args.seed}"
    )

    # ---- resume ----

    more = {
        "batch_size": batch_size,
        "accumulate": accumulate,
        "configuration": config,
        "zero": engine.zero_optimization_stage(),
    }
    told = resume.told("deepspeed/train.py", args, without=["ds_config"], data=corpus.told, **more)
    checkpoints, resume_from = resume.begun(args, world, told, log, equal=["zero"])
    engine.checkpoint_engine = later = Later(engine.checkpoint_engine)
    position = {"step": 0, "samples": 0}  # optimizer steps, and sequences over all ranks
    if resume_from:
        written_by = checkpoint.marker(resume_from)["world_size"]
        if written_by != world.ddp_world_size:
            raise SystemExit(
                f"{resume_from} was written by {written_by} ranks and cannot be read by {world.ddp_world_size}: "
                "ZeRO checkpoints fit their own number of ranks. "
                "Use that number, or convert it with ds_to_universal.py, which comes with DeepSpeed."
            )
        # The engine fills the model, its optimizer and its loss scale; the kit's own file has position and random
        # state.
        engine.load_checkpoint(str(resume_from), tag=TAG)
        position = checkpoint.read_rank(resume_from, world, seed=args.seed)
        resume.say(log, resume_from, position["step"])

    def save(*, last: bool = False) -> None:
        def start(folder: Path) -> checkpoint.Finish:
            # All ranks call this, because each holds a part of the state. `latest` is the kit's own pointer, not DeepSpeed's.
            write = later.taken(engine, folder, TAG, checkpoints)
            mine = checkpoint.rank_state(world, position)

            def finish() -> None:
                write()
                checkpoints.write_rank(folder, mine)
                checkpoint.write_model(folder, world, net.described())

            return finish

        checkpoints.save(position["step"], start, last=last)

    # ---- train ----

    where = {"seed": args.seed, "samples": position["samples"], "accumulate": accumulate, "workers": args.workers}
    # Without end, epoch after epoch. `samples` is what earlier starts have read, so that a resumed run reads no
    # sequence twice.
    batches = data.batches(train_set, micro_batch, world, **where)
    # Tokens of one optimizer step, over all ranks: sequences x tokens of each.
    speed = metrics.Speed(batch_size * args.context, flops_per_token, world, precision)
    log.started("deepspeed/train.py", world, speed, parameters=parameters, seed=args.seed)

    def test() -> float:
        return loop.test_loss(engine, test_set, args.test_windows, micro_batch, world)

    steps = loop.Steps(
        args, world, log, requests, profile, checkpoints, save, test, position=position, samples=batch_size, speed=speed
    )
    while steps.go_on():
        # The loss stays on the GPU: reading it at every step would wait for the GPU.
        losses = torch.zeros((), device=world.device)
        # Without a scheduler in the configuration, this program sets the learning rate: --lr times the factor.
        if own is not None and "scheduler" not in config:
            pace = {"lr": args.lr * factor(position["step"]), "weight_decay": args.weight_decay}
            loop.set_pace(engine.optimizer, **pace)
        for _ in range(accumulate):
            # (B, T) each: B windows of a micro-batch, T tokens of context. The targets are the tokens shifted by one.
            tokens, targets = (tensor.to(world.device, non_blocking=True) for tensor in next(batches))
            # The mean over the B * T tokens, a scalar. With ZeRO 3 each layer is all-gathered just before it is
            # used.
            loss = engine(tokens, targets)
            engine.backward(loss)  # scales the loss by the accumulation steps
            if engine.is_gradient_accumulation_boundary():
                checkpoints.settle()  # the last save may still copy what the step writes
            engine.step()  # updates after the last micro-step
            losses += loss.detach() / accumulate
        # The norm before clipping. The engine knows it only after the update.
        steps.done(losses.item, lr=engine.get_lr()[0], gradient_norm=engine.get_global_grad_norm())

    # ---- the end ----

    return steps.end()


if __name__ == "__main__":
    ranks.run(train, args.device)
