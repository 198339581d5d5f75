"""Tests a policy on problems: how much reward its sampled answers get, and how many are right."""

from typing import Any

import torch

from . import arithmetic, metrics, policy, ranks


def take(
    shape: dict[str, int], weights: policy.Weights, problems: list[arithmetic.Problem], *, count: int, seed: int
) -> tuple[float, float]:
    """Mean reward and the share that is right, over `count` completions of each problem at temperature 1, on the CPU."""
    net = policy.built(shape).eval()
    net.load_state_dict(weights)
    found = policy.sample(
        net,
        [arithmetic.encode(prompt) for prompt, _ in problems],
        count=count,
        max_tokens=4,
        temperature=1.0,
        end=arithmetic.END,
        generator=torch.Generator().manual_seed(seed),
    )
    pairs = [(problem, one.tokens) for problem, of_one in zip(problems, found, strict=True) for one in of_one]
    rewards = [arithmetic.reward(*pair) for pair in pairs]
    return sum(rewards) / len(pairs), sum(arithmetic.is_right(*pair) for pair in pairs) / len(pairs)


def final(
    log: metrics.Metrics, here: ranks.Ranks, at: dict[str, Any], result: tuple[float, float], problems: int
) -> None:
    """The last record of a program that takes the test after its last step. at: its step, and the test before the first one."""
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
        world_size=here.world_size,
        nodes=here.nodes,
        backend=here.backend,
    )
