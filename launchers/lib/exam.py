"""Tests a policy on problems: how much reward its sampled answers get, and how many are right."""

import torch

from . import arithmetic, policy


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
