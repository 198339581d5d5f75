"""Makes training batches from the policy's own answers: rollouts by the inference servers, rewards, advantages.

    python orchestrator.py --servers http://127.0.0.1:8000 --max-steps 60

For each step it draws problems, and asks the servers for several completions of each (rollouts). It rewards right completions
(lib/tasks.py: sums, or --problems by --reward), and compares each with the others of its problem: the group-relative advantage of
GRPO (Shao et al. 2024, arXiv 2402.03300, section 4.1.2). The batch goes to the trainer as <run>/rollouts/<start>/step-<n>.json. The
trainer announces new weights (broadcast.py), and this program passes each announcement to every server.

The batch of step n may be sampled while step n - 1 is still being trained, but never from weights older than version
n - 1 - max_async_level. Completions from older weights are dropped and requested again. The program keeps no state: it gets its
step from the trainer's announcements. It runs until TERM, and tests the policy on the held-out problems periodically.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import statistics
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import aiohttp
from broadcast import MISSED, NO_WEIGHTS, Announcement, announced, ask_again
from lib import metrics, options, tasks
from lib.faults import Refused
from lib.run_token import read_token

parser = options.parser(__doc__)
parser.add_argument(
    "--servers", nargs="+", metavar="URL", help="the inference servers; else those of KIT_ROLE_INFERENCE_NODES"
)
parser.add_argument("--max-steps", type=int, default=200, help="batches to make")
parser.add_argument("--batch-size", type=int, default=512, help="rollouts for each step")
parser.add_argument(
    "--rollouts-per-example", type=int, default=16, help="completions of one problem, compared with each other"
)
options.add_task(parser)
parser.add_argument(
    "--model", type=Path, metavar="CHECKPOINT", help="the trainer's: a Hugging Face folder has a tokenizer"
)
parser.add_argument("--seq-len", type=int, default=32, help="longest prompt with its completion, in tokens")
parser.add_argument("--temperature", type=float, default=1.0)
parser.add_argument("--max-async-level", type=int, default=1, help="versions that the sampling policy may be behind")
parser.add_argument("--eval-every", type=int, default=20, metavar="STEPS", help="test on held-out problems; 0: never")
parser.add_argument("--eval-rollouts", type=int, default=8, help="completions of each held-out problem")
parser.add_argument(
    "--server-timeout", type=float, default=120, metavar="SECONDS", help="give up on a server after that long"
)

# Seconds between two looks for an announcement: short against a training step, so that servers get new weights at once.
POLL_S = 0.02


class StartedAnew(Exception):  # noqa: N818 - nothing is wrong
    """The trainer was restarted: its earlier announcements no longer count."""


class InferenceServers:
    """The inference servers. A request goes to the least busy one, and is sent again for a time where it gets no answer."""

    def __init__(self, urls: list[str], session: aiohttp.ClientSession, run_dir: Path, timeout: float) -> None:
        self._urls, self._session, self._run_dir, self._timeout = urls, session, run_dir, timeout
        # URL -> requests that wait for its answer.
        self._busy = dict.fromkeys(urls, 0)

    async def generate(
        self, task: tasks.Task, problems: list[tasks.Problem], asked: dict[str, Any], start: str, oldest: int
    ) -> list[dict[str, Any]]:
        """A rollout for each completion, by weights no older than version `oldest`. Rollouts of one problem follow each other."""
        # As many parts as servers. A part is sent whole: a server samples a large batch in little more time than a small one.
        parts = [problems[n :: len(self._urls)] for n in range(len(self._urls))]
        # All parts at the same time: the step waits for the slowest server alone.
        found = await asyncio.gather(*(self._part(task, part, asked, start, oldest) for part in parts if part))
        return [rollout for part in found for rollout in part]

    async def update(self, news: Announcement) -> None:
        """Send weights to all servers. A server may miss them, for example because a newer announcement has replaced them."""
        # In the collective that sends weights, rank 0 is the trainer. The servers are ranks 1, 2, and so on.
        told = [replace(news, rank=number) for number in range(1, len(self._urls) + 1)]
        await asyncio.gather(
            *(self._post(url, "update_weights", asdict(one)) for url, one in zip(self._urls, told, strict=True))
        )

    async def _part(
        self, task: tasks.Task, problems: list[tasks.Problem], asked: dict[str, Any], start: str, oldest: int
    ) -> list[dict[str, Any]]:
        prompts = [task.prompt(problem) for problem in problems]
        while True:
            # The server with the fewest requests under way.
            url = min(self._urls, key=lambda one: self._busy[one])
            # No await since the choice: no other coroutine has counted a request in between.
            self._busy[url] += 1
            try:
                got = await self._post(url, "generate", {"prompts": prompts, **asked})
            finally:
                self._busy[url] -= 1
            # After a restart the trainer may have gone back to a checkpoint: versions of two starts cannot be compared.
            if got["start"] != start:
                raise StartedAnew
            # The server may have missed the newest weights. Its older completions would make the batch too off-policy.
            # Each completion keeps its version: the trainer logs how old its samples are.
            if got["version"] >= oldest:
                return [
                    {"problem": problem, "prompt": prompt, "version": got["version"], **completion}
                    for problem, prompt, completions in zip(problems, prompts, got["completions"], strict=True)
                    for completion in completions
                ]
            # The server cannot fetch weights by itself: the trainer has to announce them again.
            ask_again(self._run_dir)
            await asyncio.sleep(POLL_S)

    async def _post(self, url: str, what: str, body: dict[str, Any]) -> dict[str, Any]:
        """The server's answer. A restarting server first gives no answer and then has no weights, so it gets some time."""
        deadline = time.monotonic() + self._timeout  # seconds that a change of the clock does not move
        while True:
            try:
                async with self._session.post(f"{url}/{what}", json=body) as answer:
                    # MISSED (409) answers an update: the server keeps older weights. _part notices at the next rollouts.
                    if answer.status in {200, MISSED}:
                        return await answer.json()
                    # Other answers are errors: a server that still starts, or a request that it cannot serve.
                    fault = f"{answer.status}: {(await answer.text())[:200]}"  # an error page may be long
                    if answer.status == NO_WEIGHTS:
                        ask_again(self._run_dir)
            except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
                fault = f"{type(error).__name__}: {error}"
            if time.monotonic() > deadline:
                raise SystemExit(f"inference server {url}: no {what} within {self._timeout:g} s: {fault}")
            # Seconds. A server takes longer than this to start, so asking more often would not help.
            await asyncio.sleep(0.2)


class WeightsFollower:
    """Follows the trainer's announcements, and passes each to the servers. `start` and `version`: of the servers' weights."""

    def __init__(self, run_dir: Path, servers: InferenceServers) -> None:
        self._run_dir, self._servers = run_dir, servers
        self._changed = asyncio.Condition()
        self.start, self.version = "", -1  # the servers have none yet

    async def follow(self) -> None:
        """Follow the announcements without end."""
        # known: the newest announcement. handing: the task that passes it to the servers; a transfer takes seconds, and newer
        # weights may be announced in the meantime.
        known: Announcement | None = None
        handing: asyncio.Task[None] | None = None
        while True:
            news = announced(self._run_dir)
            if news is not None and news != known:
                if handing is not None:
                    handing.cancel()  # a failed transfer is announced again, and nobody waits for the first one
                known, handing = news, asyncio.create_task(self._hand_on(news))
            if handing is not None and handing.done():
                handing.result()  # raises what the task has raised, and with it ends the program
                handing = None
            await asyncio.sleep(POLL_S)

    async def at_least(self, start: str, version: int) -> None:
        """Wait until the servers have that version. StartedAnew where the trainer was restarted in the meantime."""
        async with self._changed:
            # wait_for releases the lock while it waits, and checks again after each notify_all().
            await self._changed.wait_for(lambda: self.start != start or self.version >= version)
            if self.start != start:
                raise StartedAnew

    async def another_start(self, than: str) -> str:
        """Wait until the servers have weights of another start of the trainer. Returns that start."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.start != than)
            return self.start

    async def _hand_on(self, news: Announcement) -> None:
        # Returns when every server has the weights, or has missed them.
        await self._servers.update(news)
        async with self._changed:
            # Only now, after the servers have answered, may a batch rely on this version.
            self.start, self.version = news.start, news.version
            self._changed.notify_all()


async def make_batches(
    task: tasks.Task,
    servers: InferenceServers,
    weights: WeightsFollower,
    *,
    start: str,
    log: metrics.MetricsFile,
    args: argparse.Namespace,
) -> None:
    """Make the batches of one start of the trainer, to the last step."""
    asked = {"max_tokens": args.max_tokens, "temperature": args.temperature, "end": task.end}
    # The trainer pads rollouts to the longest one. --seq-len, in tokens, bounds its memory.
    longest = max(len(task.prompt(problem)) for problem in task.training + task.held_out) + args.max_tokens
    if longest > args.seq_len:
        raise SystemExit(
            f"a prompt with --max-tokens {args.max_tokens} has up to {longest} tokens, over --seq-len {args.seq_len}."
        )
    # A folder for each start, so that the trainer never reads a batch that was made for an earlier one.
    folder = args.run_dir / "rollouts" / start
    folder.mkdir(parents=True, exist_ok=True)
    tested = -1  # the version of the last test. -1 // n is -1, so version 0 is tested

    async def test() -> None:
        nonlocal tested
        tested = weights.version
        # The held-out problems, which no batch has: --eval-rollouts completions of each.
        found = await servers.generate(task, task.held_out, {**asked, "count": args.eval_rollouts}, start, tested)
        # The same function as in training, but no advantages: nothing is learnt from held-out problems.
        await add_rewards(task, found)
        right = statistics.fmean(one["reward"] >= 1 for one in found)  # share from 0 to 1
        reward = statistics.fmean(one["reward"] for one in found)
        line = f"version {tested}: reward {reward:.3f}, {right:.1%} right on {len(task.held_out)} held-out problems"
        log.record("eval", line, step=tested, reward=reward, accuracy=right)

    # The trainer announces version n after its step n, so a trainer that was resumed at step n begins here with n + 1.
    for step in range(weights.version + 1, args.max_steps + 1):
        # Step n is trained from version n - 1. With --max-async-level 1 the batch is sampled while the trainer makes that
        # version, so that servers and trainer work at the same time; 0 makes them take turns.
        oldest = step - 1 - args.max_async_level
        await weights.at_least(start, oldest)
        if args.eval_every and weights.version // args.eval_every > tested // args.eval_every:
            await test()
        began = time.perf_counter()
        # The problems of a step are the same in every start of the run.
        draw = random.Random(args.seed * 1_000_003 + step)
        # choices() draws with replacement. --batch-size counts rollouts, hence the division.
        problems = draw.choices(task.training, k=args.batch_size // args.rollouts_per_example)
        found = await servers.generate(task, problems, {**asked, "count": args.rollouts_per_example}, start, oldest)
        await add_rewards(task, found)
        add_advantages(found, args.rollouts_per_example)
        # rollouts: problem, prompt, tokens, logprobs, version, reward and advantage of each. The trainer reads this file.
        write(folder / f"step-{step:08d}.json", {"start": start, "step": step, "rollouts": found})
        # behind: mean age of the weights that sampled the batch, in training steps; 0: the newest possible ones.
        reward = statistics.fmean(one["reward"] for one in found)
        behind = statistics.fmean(step - 1 - one["version"] for one in found)
        line = f"step {step}  reward {reward:.3f}  weights {behind:.1f} versions behind"
        log.record("rollouts", line, step=step, reward=reward, behind=behind, seconds=time.perf_counter() - began)
    # The trainer's last version, so that the last test is of the finished policy.
    await weights.at_least(start, args.max_steps)
    if args.eval_every and tested < args.max_steps:
        await test()


async def add_rewards(task: tasks.Task, found: list[dict[str, Any]]) -> None:
    """Give each rollout its reward. Runs on a thread, so that weights can be passed on while the user's function runs."""

    def rewarded() -> list[float]:
        return [task.reward(one["problem"], one["tokens"]) for one in found]

    try:
        # The event loop meanwhile serves `follow`, which passes on new weights.
        rewards = await asyncio.to_thread(rewarded)
    except Refused as error:
        raise SystemExit(tasks.said(error)) from None
    for one, reward in zip(found, rewards, strict=True):
        one["reward"] = reward


def add_advantages(found: list[dict[str, Any]], group: int) -> None:
    """Give each rewarded rollout its advantage: the reward less the mean of its group, divided by the group's deviation."""
    # A problem that all rollouts solve, or none, gives advantages of 0: nothing can be learnt from comparing equals.
    # GRPO needs no value network: the mean of the group takes its place as the baseline (section 4.1).
    for first in range(0, len(found), group):
        members = found[first : first + group]
        rewards = [one["reward"] for one in members]
        mean, deviation = statistics.fmean(rewards), statistics.pstdev(rewards)  # over `group` rewards
        for one, reward in zip(members, rewards, strict=True):
            # 1e-4 avoids a division by 0 where all rewards are equal.
            one["advantage"] = (reward - mean) / (deviation + 1e-4)


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a file so that the trainer sees all of it or none."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(content), encoding="utf-8")
    new.replace(path)  # a rename is atomic: the trainer looks for `path`


async def orchestrate(args: argparse.Namespace) -> None:
    """Make batches for every start of the trainer, one after the other, without end."""
    port = options.port("inference", "http", 8000)
    urls = args.servers or [f"http://{address}:{port}" for address in options.addresses("inference")]
    # The same options as the trainer's, so that both split the problems alike.
    task = tasks.opened(args)
    log = metrics.MetricsFile(args.run_dir / "orchestrator")
    log.say(f"{len(urls)} inference servers: {' '.join(urls)}")

    async def every_start(weights: WeightsFollower) -> None:
        start = ""
        # Ends only with the program: after the last step another start may come.
        while True:
            # The trainer's first start, and each one after a crash or a requeue.
            start = await weights.another_start(start)
            with contextlib.suppress(StartedAnew):
                await make_batches(task, servers, weights, start=start, log=log, args=args)

    # One session keeps its connections open, so that a request need not open a new one. Seconds for a whole answer.
    timeout = aiohttp.ClientTimeout(total=args.server_timeout)
    # The servers answer the programs of this run alone.
    shown = {"Authorization": f"Bearer {read_token(args.run_dir)}"}
    async with aiohttp.ClientSession(timeout=timeout, headers=shown) as session:
        servers = InferenceServers(urls, session, args.run_dir, args.server_timeout)
        weights = WeightsFollower(args.run_dir, servers)
        # If one of the two tasks fails, the group cancels the other one, and the program ends with the error.
        async with asyncio.TaskGroup() as group:
            group.create_task(weights.follow())
            group.create_task(every_start(weights))


def main() -> None:
    """Run until TERM."""
    args = options.parse(parser)
    if args.batch_size % args.rollouts_per_example:
        raise SystemExit(
            f"--batch-size {args.batch_size} is not a multiple of --rollouts-per-example {args.rollouts_per_example}."
        )
    # The signal before a time limit is for programs that have something to save; TERM ends a service well.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    # At once, without closing connections: there is nothing to save.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    asyncio.run(orchestrate(args))


if __name__ == "__main__":
    main()
