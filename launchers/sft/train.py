"""Supervised fine-tuning of the byte-level GPT on worked examples, on CPUs (gloo) or GPUs (nccl).

    torchrun --standalone --nproc-per-node=2 train.py --max-steps 100
    python train.py --model ../rl-run/checkpoints

The examples are those of launchers/rl (lib/arithmetic.py), each with its right answer; the loss counts the tokens of the answer
only. --model is a checkpoint of this program or of launchers/rl, and launchers/rl starts from one of this. Started again with the
same checkpoint folder it continues where it stopped. `lib`, options and files: docs/training.md and docs/rl.md.
"""

import random
from pathlib import Path
from typing import Any

import torch
from lib import arithmetic, checkpoint, exam, loop, metrics, options, policy, ranks, resume, spread, stop
from torch import nn

parser = options.parser(__doc__)
options.add_policy(parser)
parser.add_argument("--max-steps", type=int, default=200, help="optimizer steps")
parser.add_argument("--batch-size", type=int, default=64, help="examples for each optimizer step, over all ranks")
options.add_pace(parser, lr=6e-3, warmup=10)
parser.add_argument("--dp-replicate", type=int, default=0, help="copies of the model; 0: as many as ranks")
parser.add_argument(
    "--test-rollouts", type=int, default=16, help="sampled answers to each held-out problem, for the test"
)
parser.set_defaults(log_every=10)
args = options.parse(parser)


def train(here: ranks.Ranks) -> int:  # noqa: PLR0915 - one job, read from top to bottom
    """Train to the last step, or until a stop is asked for; the exit code."""
    log = metrics.Metrics(args.run_dir, here)
    requests = stop.StopRequest(args.run_dir, here)
    profile = metrics.Profile(args.run_dir, here, args.profile_steps, args.profile_ranks)
    training, held_out = arithmetic.problems()
    share = ranks.share("--batch-size", args.batch_size, here)

    # ---- model ----

    torch.manual_seed(args.seed)
    net = policy.begun(args.model, options.shape(args))
    shape = policy.described(net)
    parameters = sum(p.numel() for p in net.parameters())
    forward = spread.over(here, net.to(here.device), args.dp_replicate)
    optimizer = loop.adamw(net.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    factor = options.cosine(args.warmup, args.max_steps)
    log.say(
        f"{here.world_size} ranks on {here.nodes} nodes, {here.backend}, {parameters:,} parameters, "
        f"{len(training)} examples, seed {args.seed}"
    )

    def test(weights: policy.Weights) -> tuple[float, float]:
        return exam.take(shape, weights, held_out, count=args.test_rollouts, seed=args.seed)

    # ---- resume ----

    told = resume.told("sft/train.py", args, without=options.POLICY_SHAPE, shape=shape)
    saves, found = resume.begun(args, here, told, log)
    at: dict[str, Any] = {"step": 0, "tokens": 0}
    if found:
        saved = spread.restore(net, optimizer, found)
        at = saved["at"]
        resume.say(log, found, at["step"])
    else:
        weights = spread.weights(net)
        if here.is_first:
            at["reward_before"], at["accuracy_before"] = test(weights)

    def save(*, last: bool = False) -> None:
        def start(folder: Path) -> checkpoint.Finish | None:
            whole = spread.state(net, optimizer)
            checkpoint.write_model(folder, here, net.described())
            if not here.is_first:
                return None
            made = {**whole, "shape": shape, "at": dict(at)}
            kept = saves.copy(made) if args.checkpoint_async and not last else made
            return lambda: torch.save(kept, folder / "state.pt")

        saves.save(at["step"], start, last=last)

    # ---- train ----

    speed = metrics.Speed(None, net.flops_per_token(), here, "fp32")
    log.started("sft/train.py", here, speed, parameters=parameters, seed=args.seed)
    while at["step"] < args.max_steps:
        profile.step(at["step"] + 1)
        # The examples of a step are the same on every world size and in every start.
        drawn = random.Random(args.seed * 1_000_003 + at["step"]).choices(training, k=args.batch_size)
        mine = drawn[here.rank * share :][:share]
        rows = policy.batch(
            [arithmetic.encode(prompt) for prompt, _ in mine], [arithmetic.solution(one) for one in mine], here.device
        )
        loss = policy.masked_mean(-policy.logprobs(forward(rows.tokens), rows), rows.mask)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), args.clip)
        lr = loop.set_pace(optimizer, lr=args.lr * factor(at["step"]), weight_decay=args.weight_decay)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        at["step"] += 1
        tokens = sum(len(prompt) + len(arithmetic.solution((prompt, answer))) for prompt, answer in drawn)
        at["tokens"] = at.get("tokens", 0) + tokens
        speed.step(tokens)

        if args.log_every and at["step"] % args.log_every == 0:
            values = {"lr": lr, "gradient_norm": spread.number(norm), "tokens": at["tokens"]}
            log.step(at["step"], loss.item(), speed, here, **values)
        code = loop.after_step(requests, log, profile, save, at["step"], every=args.checkpoint_every)
        if code is not None:
            return code

    # ---- the end ----

    loop.close(requests, profile, save)
    weights = spread.weights(net)
    if here.is_first:
        exam.final(log, here, at, test(weights), len(held_out))
    return 0


if __name__ == "__main__":
    ranks.run(train, args.device)
