"""Tests a policy on problems: the mean reward of its sampled answers, and the share of right ones."""

from typing import Any

import torch

from . import metrics, policy, ranks, tasks
from .faults import Refused

ROWS = 1024  # completions that are sampled together


def take(
    task: tasks.Task,
    shape: dict[str, int],
    weights: policy.Weights,
    *,
    count: int,
    max_tokens: int,
    seed: int,
    device: torch.device,
) -> tuple[float, float]:
    """The mean reward and the share of right answers, over `count` completions of each held-out problem at temperature 1."""
    net = policy.built(shape).eval()
    net.load_state_dict(weights)
    net.to(device)
    generator = torch.Generator(device).manual_seed(seed)
    rewards = []
    each = max(1, ROWS // count)  # problems that are sampled together
    for first in range(0, len(task.held_out), each):
        problems = task.held_out[first : first + each]
        prompts = [task.prompt(one) for one in problems]
        found = policy.sample(
            net, prompts, count=count, max_tokens=max_tokens, temperature=1.0, end=task.end, generator=generator
        )
        try:
            rewards += [task.reward(one, made.tokens) for one, of in zip(problems, found, strict=True) for made in of]
        except Refused as error:
            raise SystemExit(tasks.said(error)) from None
    return sum(rewards) / len(rewards), sum(one >= 1 for one in rewards) / len(rewards)


def final(
    log: metrics.MetricsFile, world: ranks.Ranks, at: dict[str, Any], result: tuple[float, float], problems: int
) -> None:
    """Write the last record of a program, after its last test. at: its step, and the results of the test before the first step."""
    reward, right = result
    log.record(
        "final",
        f"done: reward {reward:.3f}, {right:.1%} right on {problems} held-out problems after {at['step']} steps; "
        f"before: {at['reward_before']:.3f}, {at['accuracy_before']:.1%}",
        step=at["step"],
        reward=reward,
        accuracy=right,
        reward_before=at["reward_before"],
        accuracy_before=at["accuracy_before"],
        world_size=world.ddp_world_size,
        nodes=world.nodes,
        backend=world.backend,
    )
