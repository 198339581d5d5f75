"""Supervised fine-tuning of a GPT on chats or worked examples, on CPUs (gloo) or GPUs (nccl).

    torchrun --standalone --nproc-per-node=2 train.py --data chats.jsonl --model Llama-3.2-1B/ --seq-len 2048
    torchrun --standalone --nproc-per-node=2 train.py --max-steps 100
    python train.py --model ../rl-run/checkpoints

Each line of --data is a chat (lib/chats.py). The loss counts the assistant's tokens only. Without --data the program learns the
sums of launchers/rl (lib/arithmetic.py), each with its right answer. --model is a Hugging Face folder, or a checkpoint of this
program or of launchers/rl, which can also start from a checkpoint of this program. Started again with the same checkpoint folder,
it continues where it stopped. For `lib`, options and files see docs/guides/training.md, docs/guides/data.md and docs/guides/rl.md.
"""

import random
from pathlib import Path
from typing import Any

import torch
from lib import (
    arithmetic,
    chat_dataset,
    chats,
    checkpoint,
    exam,
    host_copy,
    loop,
    metrics,
    options,
    policy,
    ranks,
    reports,
    resume,
    spread,
    stop,
    tasks,
)
from torch import nn

parser = options.parser(__doc__)
options.add_policy(parser)
options.add_size(parser)
parser.add_argument("--data", type=Path, help=".jsonl of chats, or a folder of them; else sums")
options.add_chats(parser)
parser.add_argument(
    "--turns", choices=chats.TURNS, default="every", help="of the assistant in a chat: which the loss counts"
)
parser.add_argument(
    "--pack", action="store_true", help="several examples in a row of --seq-len tokens; none attends to another"
)
parser.add_argument("--max-steps", type=int, default=200, help="optimizer steps")
parser.add_argument("--batch-size", type=int, default=64, help="examples for each optimizer step, over all ranks")
parser.add_argument("--accumulate", type=int, default=1, help="micro-steps for each optimizer step")
options.add_pace(parser, lr=6e-3, warmup=10, tuned=2e-5)
parser.add_argument("--dp-replicate", type=int, default=0, help="copies of the model; 0: as many as ranks")
parser.add_argument(
    "--test-rollouts", type=int, default=16, help="sampled answers to each held-out problem, for the test"
)
parser.add_argument("--test-chats", type=int, default=256, help="held-out chats for validation and the final loss")
parser.add_argument(
    "--eval-every", type=int, default=0, metavar="STEPS", help="validate chats, and keep the best checkpoint; 0: never"
)
parser.set_defaults(log_every=10)
args = options.parse(parser)

# Options that decide the chats' tokens. The digest of the data is compared instead.
OF_THE_DATA = ("tokenizer", "chat_template", "turns", "test_chats")


def train(world: ranks.Ranks) -> int:  # noqa: PLR0915 - one job, read from top to bottom
    """Train to the last step, or until a stop is requested. Returns the exit code."""
    log = metrics.MetricsFile(args.run_dir, world)
    requests = stop.StopRequest(args.run_dir, world)
    profile = metrics.ProfilerTrace(args.run_dir, world, args.profile_steps, args.profile_ranks)
    # Rows of one micro-step on one rank.
    micro_batch = ranks.share("--batch-size", args.batch_size, world, args.accumulate)
    if args.eval_every and not args.data:
        raise SystemExit("--eval-every: only with --data; sums are tested before and after.")

    # ---- data: chats, or sums ----

    # Chats are tokenized once, by rank 0. Without --data the sums are made as they are drawn.
    taught = chat_dataset.opened(args, world, log) if args.data else None
    sums = tasks.sums()

    def drawn(step: int) -> list[chats.TokenRow]:
        """The examples of a step, the same on every world size and in every start. Steps count from 0."""
        if taught:
            return taught.drawn(step, args.batch_size, args.seed)
        # 1,000,003 is a prime: the seeds of different runs and steps do not meet.
        problems = random.Random(args.seed * 1_000_003 + step).choices(sums.training, k=args.batch_size)
        return [policy.answered(arithmetic.encode(one[0]), arithmetic.solution(one)) for one in problems]

    # ---- model ----

    # The same seed on all ranks: each draws the same weights.
    torch.manual_seed(args.seed)
    # A model of --model keeps its own shape. Only without one, --layers, --heads and --dim set the shape.
    net = policy.begun(args.model, options.shape(args, taught.vocabulary if taught else 256))
    shape = policy.described(net)
    parameters = sum(p.numel() for p in net.parameters())
    # `forward` is DDP or FSDP2 around `net`. Call it in training, so that it averages the gradients over the ranks in
    # backward.
    forward = spread.over(world, net.to(world.device), args)
    optimizer = loop.adamw(net.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    # factor(step) is between 0 and 1; the learning rate is --lr times this factor.
    factor = options.schedule(args, args.max_steps)
    log.say(
        f"{world.ddp_world_size} ranks on {world.nodes} nodes, {world.backend}, {parameters:,} parameters, "
        f"{taught.counts['train'] if taught else len(sums.training)} examples, seed {args.seed}"
    )

    def test_sums() -> tuple[float, float]:
        """The mean reward and the share of right answers, on the first rank."""
        # A collective, because a rank may hold shards only. Then rank 0 samples alone: sums take a few tokens.
        weights = spread.weights(net)
        if not world.is_main_process:
            return 0.0, 0.0
        return exam.take(
            sums, shape, weights, count=args.test_rollouts, max_tokens=4, seed=args.seed, device=world.device
        )

    def test_chats() -> float:
        return chat_dataset.test_loss(forward, taught.held_out(args.test_chats), micro_batch, world) if taught else 0.0

    # ---- resume ----

    # Sums are drawn for each step, so they have no order.
    which: dict[str, Any] = {"data": taught.told} if taught else {"order": None}
    told = resume.told("sft/train.py", args, without=(*options.POLICY_SHAPE, *OF_THE_DATA), shape=shape, **which)
    checkpoints, resume_from = resume.begun(args, world, told, log)
    # Optimizer steps, and tokens over all ranks: prompts count, padding does not. The test before training is kept
    # here, too.
    position: dict[str, Any] = {"step": 0, "tokens": 0}
    if resume_from:
        saved = spread.restore(net, optimizer, resume_from, world)
        position = saved["at"]
        resume.say(log, resume_from, position["step"])
    # A new start: the test before the first step is what the result is compared with.
    elif taught:
        position["loss_before"] = test_chats()
        log.record(
            "test", f"before: test loss {position['loss_before']:.4f}", step=0, test_loss=position["loss_before"]
        )
    else:
        position["reward_before"], position["accuracy_before"] = test_sums()

    def save(*, last: bool = False) -> None:
        def start(folder: Path) -> checkpoint.Finish:
            written_by_step = host_copy.written_by_step(net, optimizer)
            kept = checkpoints.kept(spread.state(net, optimizer, world), written_by_step)
            more = {"shape": shape, "at": dict(position)}

            def finish() -> None:
                # A collective: all ranks call it, rank 0 gets the whole state in host memory and writes it.
                whole = spread.whole(kept(), world, checkpoints.group)
                checkpoint.write_model(folder, world, net.described())
                if world.is_main_process:
                    checkpoints.write(whole | more, folder / "state.pt")

            return finish

        checkpoints.save(position["step"], start, last=last)

    # ---- train ----

    # None: the chats of a step differ in length, so each step reports its own number of tokens.
    speed = metrics.Speed(None, net.flops_per_token(), world, args.precision)
    log.started("sft/train.py", world, speed, parameters=parameters, seed=args.seed)
    reports.progress.step(position["step"])
    while position["step"] < args.max_steps:
        profile.step(position["step"] + 1)
        # All ranks draw the rows of all ranks, in the same order. So no rank has to send data, and the global number of
        # counted tokens is known without a collective.
        # --batch-size rows: tokens, and a mask that is 1 where the loss counts the token.
        rows = drawn(position["step"])
        counted = sum(sum(row.mask[1:]) for row in rows)  # the first token is never a target
        loss = 0.0
        for micro_step in range(args.accumulate):
            # This rank's micro-batches: every world_size-th one of the step.
            number = micro_step * world.ddp_world_size + world.ddp_rank
            mine = rows[number * micro_batch :][:micro_batch]
            # part.tokens, part.targets and part.mask are (b, T): b rows of a micro-batch, padded to the T tokens of
            # the longest. With --pack they share fewer rows of --seq-len tokens, so that less is padded.
            part = (
                policy.packed(mine, world.device, most=args.seq_len) if args.pack else policy.rows(mine, world.device)
            )
            # Gradients add up on this rank. In the last micro-batch DDP all-reduces them, and FSDP2 reduce-scatters them.
            with spread.summing(forward, last=micro_step == args.accumulate - 1):
                # logits (B, T, V), log-probabilities and mask (B, T). Padding and prompts have mask 0.
                summed = -(
                    policy.logprobs(forward(part.tokens, documents=part.documents).float(), part) * part.mask
                ).sum()
                # Each token counts the same. The backward pass averages over ranks, whose numbers of tokens differ.
                share = summed * world.ddp_world_size / counted
                share.backward()
            # This rank's part of the loss. The mean of `loss` over the ranks is the loss of the step.
            loss += share.item()
        # The gradients are summed over the micro-batches; the backward passes have averaged them over the ranks.
        # With FSDP2 this is the norm over all shards: a DTensor, whose value needs a collective (spread.number, when it
        # is logged).
        norm = nn.utils.clip_grad_norm_(net.parameters(), args.clip)
        lr = loop.set_pace(optimizer, lr=args.lr * factor(position["step"]), weight_decay=args.weight_decay)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        position["step"] += 1
        # Over all ranks, because every rank has drawn all rows.
        tokens = sum(len(row.tokens) for row in rows)
        position["tokens"] = position.get("tokens", 0) + tokens
        speed.step(tokens)

        if args.log_every and position["step"] % args.log_every == 0:
            # spread.number is a collective: all ranks must log the same steps.
            values = {"lr": lr, "gradient_norm": spread.number(norm), "tokens": position["tokens"]}
            log.step(position["step"], loss, speed, world, **values)
        if args.eval_every and position["step"] % args.eval_every == 0:
            # Held-out chats; the checkpoint with the smallest loss is kept as the best.
            loop.evaluate(test_chats, position["step"], position["step"], log, checkpoints, save)
            speed.restart()
        # Saves if it is due. Then all ranks agree whether one of them was asked to stop: a collective.
        code = loop.after_step(requests, log, profile, save, position["step"], every=args.checkpoint_every)
        if code is not None:
            return code

    # ---- the end ----

    loop.close(requests, profile, save)
    if taught:
        log.final(position["step"], test_chats(), world)
    else:
        exam.final(log, world, position, test_sums(), len(sums.held_out))
    return 0


if __name__ == "__main__":
    ranks.run(train, args.device)
