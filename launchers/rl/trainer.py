"""Trains the policy on the orchestrator's batches by clipped policy gradient, on CPUs (gloo) or GPUs (nccl).

    torchrun --standalone --nproc-per-node=2 trainer.py --max-steps 60
    python trainer.py --model ../sft-run/checkpoints --weight-broadcast nccl

It learns the problems of --problems by the function of --reward (lib/tasks.py), or sums. Without --model it starts from a new
policy. For sums, supervised steps on random digits first teach that policy the form of an answer. Which answer is right, it learns
only from the rewards. --model is a checkpoint of this program or of launchers/sft, or a Hugging Face folder.

Step n reads <run>/rollouts/<start>/step-<n>.json, makes --updates optimizer steps with it, and sends out the weights as version n
(broadcast.py). With --dp-replicate copies of the model, each copy is sharded over world size / copies ranks (FSDP2). As many
copies as ranks is plain data parallelism (DDP). The run ends with this program. Started again with the same checkpoint folder, it
continues where it stopped, and the other two programs notice. For `lib`, options and files see docs/guides/training.md and
docs/guides/rl.md.
"""

import json
import random
import shutil
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from broadcast import Broadcaster
from lib import checkpoint, exam, host_copy, loop, metrics, options, policy, ranks, reports, resume, spread, stop, tasks
from torch import nn

parser = options.parser(__doc__)
options.add_policy(parser)
options.add_size(parser)
options.add_task(parser)
parser.add_argument("--max-steps", type=int, default=200, help="batches to train on")
parser.add_argument(
    "--form-steps", type=int, default=60, help="of sums: supervised steps on random digits first, without --model"
)
parser.add_argument("--updates", type=int, default=4, help="optimizer steps on each batch, each on a part of it")
parser.add_argument(
    "--micro-batch", type=int, default=0, metavar="ROLLOUTS", help="of one forward pass on a rank; 0: all of an update"
)
options.add_rate(parser, 3e-3, 1e-6, "at first; it falls to 0 at the last step")
parser.add_argument("--entropy", type=float, default=0.02, help="weight of the entropy, which keeps the policy trying")
parser.add_argument(
    "--clip-ratio", type=float, default=0.2, help="how far a token's probability may move from the sampler's"
)
parser.add_argument("--clip", type=float, default=1.0, help="largest gradient norm")
parser.add_argument("--dp-replicate", type=int, default=0, help="copies of the model; 0: as many as ranks")
parser.add_argument(
    "--weight-broadcast", choices=("filesystem", "nccl"), default="filesystem", help="nccl: a collective; gloo on CPUs"
)
parser.add_argument(
    "--inference-servers", type=int, default=len(options.addresses("inference")), help="members of the collective"
)
parser.add_argument(
    "--broadcast-port", type=int, default=options.port("trainer", "broadcast", 0), help="0: any free one"
)
parser.add_argument(
    "--broadcast-timeout", type=float, default=120, metavar="SECONDS", help="for one attempt to hand out weights"
)
parser.add_argument("--batch-timeout", type=float, default=600, metavar="SECONDS", help="give up when no batch comes")
parser.add_argument(
    "--test-rollouts", type=int, default=16, help="completions of each held-out problem, before and after"
)
parser.set_defaults(log_every=1)
args = options.parse(parser)
if args.micro_batch < 0:
    parser.error(f"--micro-batch {args.micro_batch}: rollouts of one forward pass, 0 or more")

POLL_S = 0.02
Rollout = dict[str, Any]  # prompt, tokens, logprobs, advantage, reward, version: as the orchestrator writes it
# Options that change no number of the training.
OF_THE_RUN = ("weight_broadcast", "inference_servers", "broadcast_port", "broadcast_timeout", "batch_timeout")


def gain_of(forward: nn.Module, rollouts: list[Rollout], device: torch.device) -> tuple[torch.Tensor, float]:
    """The gain of these rollouts, summed over their tokens, and the number of tokens that --clip-ratio has limited."""
    # tokens, targets and mask of `rows` are (B, T): B rollouts, padded to T tokens.
    rows = policy.batch([one["prompt"] for one in rollouts], [one["tokens"] for one in rollouts], device)
    # Log-probabilities under the weights that drew the rollouts, (B, T).
    old = rows.spread([one["logprobs"] for one in rollouts])
    # (B, 1): all tokens of a rollout have its advantage.
    advantages = torch.tensor([one["advantage"] for one in rollouts], device=device)[:, None]
    # (B, T, V) logits of the weights as they are now, at the temperature of the rollouts.
    scores = forward(rows.tokens).float() / args.temperature
    # How much likelier each token has become, (B, T). PPO's clip takes the gain out of moves that are too large.
    ratio = (policy.logprobs(scores, rows) - old).exp()
    # The smaller of both gains: no reward for moving a token further than the clip, but the full cost of a move in the
    # wrong direction.
    limited = ratio.clamp(1 - args.clip_ratio, 1 + args.clip_ratio)
    gain = torch.minimum(ratio * advantages, limited * advantages) + args.entropy * policy.entropy(scores)
    return (gain * rows.mask).sum(), ((ratio != limited) * rows.mask).sum().item()


def learn(forward: nn.Module, part: list[Rollout], mine: list[Rollout], world: ranks.Ranks) -> tuple[float, float]:
    """Forward and backward passes of an update. Returns this rank's loss, and its number of tokens that --clip-ratio has limited.

    part: the rollouts of the update. mine: those of this rank, at least one.
    """
    # Completion tokens of the part over all ranks, known without a collective.
    tokens = sum(len(one["tokens"]) for one in part)
    # As many micro-batches on each rank: a sharded model gathers its weights from all of them.
    most = -(-len(part) // world.ddp_world_size)  # rollouts of a rank, at most
    turns = -(-most // (args.micro_batch or most))
    learned = limited = 0.0
    for turn in range(turns):
        # A rank with a rollout fewer may have none in a turn: then it computes one, and counts none of its tokens.
        some, weight = (mine[turn::turns], 1.0) if turn < len(mine) else (mine[:1], 0.0)
        # DDP all-reduces the gradients in the last backward pass, FSDP2 reduce-scatters them: each rank must get there.
        with spread.summing(forward, last=turn == turns - 1):
            gain, count = gain_of(forward, some, world.device)
            # A minus, because the optimizer minimizes and the gain should grow. Each token counts the same: the backward pass
            # averages over ranks, whose numbers of tokens differ.
            loss = -gain * weight * world.ddp_world_size / tokens
            loss.backward()
        learned += loss.item()
        limited += count * weight
    return learned, limited


def train(world: ranks.Ranks) -> int:  # noqa: PLR0915 - one job, read from top to bottom
    """Train to the last batch, or until a stop is requested. Returns the exit code."""
    log = metrics.MetricsFile(args.run_dir, world)
    requests = stop.StopRequest(args.run_dir, world)
    profile = metrics.ProfilerTrace(args.run_dir, world, args.profile_steps, args.profile_ranks)
    task = tasks.opened(args)

    # ---- model: copies of it, or shards of copies ----

    # The same seed on all ranks: each draws the same weights.
    torch.manual_seed(args.seed)
    net = policy.begun(args.model, options.shape(args, task.vocabulary))
    shape = policy.described(net)
    # Counted before FSDP2 shards them: afterwards a rank sees its own shards.
    parameters = sum(p.numel() for p in net.parameters())
    # `forward` is DDP or FSDP2 around `net`. Call it in training, so that it averages the gradients over the ranks in
    # backward.
    forward = spread.over(world, net.to(world.device), args)
    # No weight decay: only the rewards should move the weights.
    optimizer = loop.adamw(net.parameters(), lr=args.lr, weight_decay=None)
    log.say(
        f"{world.ddp_world_size} ranks on {world.nodes} nodes, {world.backend}, {parameters:,} parameters, "
        f"weights by {args.weight_broadcast}, seed {args.seed}"
    )

    # ---- resume ----

    without = (*options.POLICY_SHAPE, *options.TASK, *OF_THE_RUN)
    what: dict[str, Any] = {"shape": shape, "data": task.told, "reward": args.reward}
    told = resume.told(
        "rl/trainer.py", args, without=without, order=None, weight_decay_on=None, **what
    )  # the orchestrator draws the problems
    checkpoints, resume_from = resume.begun(args, world, told, log)
    # Batches trained on, and tokens over all ranks. The test before training is kept here, too.
    position: dict[str, Any] = {"step": 0, "tokens": 0}
    if resume_from:
        saved = spread.restore(net, optimizer, resume_from, world)
        position = saved["at"]
        # With another number of ranks the saved states do not fit, and each rank gets a new seed.
        checkpoint.restore_rng(saved["rng"], world, seed=args.seed, step=position["step"])
        resume.say(log, resume_from, position["step"])

    def save(*, last: bool = False) -> None:
        def start(folder: Path) -> checkpoint.Finish:
            written_by_step = host_copy.written_by_step(net, optimizer)
            kept = checkpoints.kept(spread.state(net, optimizer, world), written_by_step)
            mine, more = checkpoint.rng_state(), {"shape": shape, "at": dict(position)}

            def finish() -> None:
                # Collectives, because a rank may hold shards only: all ranks call them, rank 0 gets the whole state
                # and writes it.
                rng = checkpoints.gathered(mine)
                whole = spread.whole(kept(), world, checkpoints.group)
                checkpoint.write_model(folder, world, net.described())
                if world.is_main_process:
                    checkpoints.write(whole | more | {"rng": rng}, folder / "state.pt")

            return finish

        checkpoints.save(position["step"], start, last=last)

    def update(lr: float = args.lr) -> float:
        """Make one optimizer step with the gradients of the backward passes before. Returns the gradient norm."""
        # The rate falls over the batches, so it is set for each.
        loop.set_pace(optimizer, lr=lr)
        # The length of the whole gradient. A longer one is scaled down to --clip, so that one odd batch cannot throw
        # the policy far.
        norm = nn.utils.clip_grad_norm_(net.parameters(), args.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return spread.number(norm)

    # ---- teach the form of an answer, not its value ----

    if task.guess and not (resume_from or args.model):
        # Each rank draws other problems, so that a step learns from ranks x 32 of them.
        draw = random.Random(args.seed + world.ddp_rank)
        for _ in range(args.form_steps):
            prompts = [task.prompt(problem) for problem in draw.choices(task.training, k=32)]
            # rows.tokens (32, T) -> logits (32, T, V). The loss is the mean over the guessed tokens; prompts have
            # mask 0.
            rows = policy.batch(prompts, [task.guess(draw) for _ in prompts], world.device)
            policy.masked_mean(-policy.logprobs(forward(rows.tokens).float(), rows), rows.mask).backward()
            update()

    # ---- send out the weights ----

    caster: Broadcaster | None = None
    if world.is_main_process:
        shutil.rmtree(args.run_dir / "rollouts", ignore_errors=True)  # samples for an earlier start
        # The address and port where the servers join the collective that sends weights.
        address = (options.addresses("trainer")[0], args.broadcast_port)
        caster = Broadcaster(
            args.run_dir,
            shape,
            how=args.weight_broadcast,
            servers=args.inference_servers,
            address=address,
            timeout=args.broadcast_timeout,
        )

    def hand_out() -> policy.Weights:
        """Send the weights to the servers, as the version of this step. Returns the whole weights on rank 0."""
        # A collective: shards are all-gathered, and rank 0 has the whole weights in host memory.
        weights = spread.weights(net)
        if caster:
            caster.publish(position["step"], {name: tensor.to(world.device) for name, tensor in weights.items()})
        return weights

    def test(weights: policy.Weights) -> tuple[float, float]:
        how = {"count": args.test_rollouts, "max_tokens": args.max_tokens, "seed": args.seed, "device": world.device}
        # Rank 0 alone samples with these weights. The others wait in the next collective.
        return exam.take(task, shape, weights, **how)

    weights = hand_out()
    if world.is_main_process and not resume_from:
        position["reward_before"], position["accuracy_before"] = test(weights)
        log.record(
            "test",
            f"before: reward {position['reward_before']:.3f}, {position['accuracy_before']:.1%} right on {len(task.held_out)} "
            "held-out problems",
            step=0,
            reward=position["reward_before"],
            accuracy=position["accuracy_before"],
        )

    # ---- train ----

    def next_batch(step: int) -> tuple[list[Rollout], int]:
        """The rollouts of a step, or the number of a signal that came during the wait. The same on all ranks."""
        # Monotonic seconds: a change of the clock does not shorten the wait.
        deadline = time.monotonic() + args.batch_timeout
        while True:
            # Only rank 0 looks for the file. On a network file system the other ranks may see it later, and then
            # ranks would disagree.
            box: list[Any] = [None]
            if caster:
                caster.repeat_if_asked()
                path = args.run_dir / "rollouts" / caster.start / f"step-{step:08d}.json"
                if path.exists():
                    box = [json.loads(path.read_text(encoding="utf-8"))["rollouts"]]
                elif time.monotonic() > deadline:
                    box = [f"no batch for step {step} within {args.batch_timeout:g} s: is the orchestrator alive?"]
            # Over gloo, in host memory: the group of the training's collectives stays free, and no GPU is needed.
            dist.broadcast_object_list(box, src=0, group=world.control)
            if isinstance(box[0], str):
                raise SystemExit(box[0])
            if signal := requests.agreed():
                return [], signal
            if box[0] is not None:
                return box[0], 0
            time.sleep(POLL_S)

    speed = metrics.Speed(None, net.flops_per_token(), world, args.precision)
    log.started("rl/trainer.py", world, speed, parameters=parameters, seed=args.seed)
    reports.progress.step(position["step"])
    while position["step"] < args.max_steps:
        step = position["step"] + 1
        began = time.perf_counter()
        # Waiting for samples counts as `data` in `kit time`.
        with reports.progress.phase("data"):
            rollouts, signal = next_batch(step)
        if signal:
            return loop.leave(signal, requests, log, profile, save, position["step"])
        # Every rank needs a rollout in every update: an empty part has no loss to average.
        if len(rollouts) < args.updates * world.ddp_world_size:
            raise SystemExit(
                f"{len(rollouts)} rollouts are too few for {args.updates} updates on {world.ddp_world_size} ranks."
            )
        profile.step(step)
        # Seconds that the trainer waited for samples: the share of its time that more inference servers could save.
        waited = time.perf_counter() - began
        random.Random(args.seed + step).shuffle(rollouts)  # so that each part of a batch has many problems
        clipped = loss_of_all = 0.0
        # Linear decay to 0, over batches.
        lr = args.lr * (1 - position["step"] / args.max_steps)
        for number in range(args.updates):
            # Each update uses another part of the batch, once. So the later updates train on samples that are a
            # little off-policy.
            part = rollouts[number :: args.updates]
            # Each rank takes every world_size-th rollout of the part.
            mine = part[world.ddp_rank :: world.ddp_world_size]
            loss, moved = learn(forward, part, mine, world)
            loss_of_all += loss / args.updates
            norm = update(lr=lr)
            # A high share says that the updates are too large, or the samples too old.
            clipped += moved / sum(len(one["tokens"]) for one in mine) / args.updates
        position["step"] = step
        # Prompt and completion tokens over all ranks: all ranks have all rollouts.
        read = sum(len(one["prompt"]) + len(one["tokens"]) for one in rollouts)
        position["tokens"] = position.get("tokens", 0) + read
        speed.step(read)
        weights = hand_out()
        if args.log_every and step % args.log_every == 0:
            reward = sum(one["reward"] for one in rollouts) / len(rollouts)
            right = sum(one["reward"] >= 1 for one in rollouts) / len(rollouts)
            log.step(
                step,
                loss_of_all,
                speed,
                world,
                said=f"  reward {reward:.3f}  {right:.1%} right  {clipped:.1%} clipped",
                reward=reward,
                accuracy=right,
                clipped=clipped,
                lr=lr,
                gradient_norm=norm,
                tokens=position["tokens"],
                # Mean age of the samples, in versions of the weights; 0: sampled with the newest.
                behind=sum(step - 1 - one["version"] for one in rollouts) / len(rollouts),
                waited=waited,
                seconds=time.perf_counter() - began,
            )
        reports.progress.step(step)
        if args.checkpoint_every and step % args.checkpoint_every == 0:
            with reports.progress.phase("save"):
                save()

    # ---- the end ----

    loop.close(requests, profile, save)
    if world.is_main_process:
        exam.final(log, world, position, test(weights), len(task.held_out))
    return 0


if __name__ == "__main__":
    ranks.run(train, args.device)
