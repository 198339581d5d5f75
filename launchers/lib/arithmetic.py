"""Sums of small numbers as text: the task of launchers/rl and launchers/sft. Code can check the answers.

A problem is a prompt and its answer, such as ("1+0+2=", "3"). A completion is the answer's bytes and END, a newline. The split into
training and held-out problems is the same everywhere.
"""

import itertools
import random

END = 10  # "\n", after which sampling stops

Problem = tuple[str, str]


def problems(terms: int = 4, largest: int = 2) -> tuple[list[Problem], list[Problem]]:
    """All sums of 2 to `terms` numbers from 0 to `largest` with a one-digit result: for training, and one in four held out."""
    made = [
        ("+".join(map(str, numbers)) + "=", str(sum(numbers)))
        for count in range(2, terms + 1)
        for numbers in itertools.product(range(largest + 1), repeat=count)
        if sum(numbers) <= 9
    ]
    random.Random(0).shuffle(made)
    held_out = len(made) // 4
    return made[held_out:], made[:held_out]


def encode(text: str) -> list[int]:
    """The tokens of a text, which are its bytes."""
    return list(text.encode())


def solution(problem: Problem) -> list[int]:
    """The tokens of the right completion."""
    return [*encode(problem[1]), END]


def guess(draw: random.Random) -> list[int]:
    """A completion that has the form of an answer: a random digit, which is right by chance only."""
    return [*encode(str(draw.randrange(10))), END]


def is_right(problem: Problem, completion: list[int]) -> bool:
    """Whether the completion is the answer and nothing else."""
    return completion == solution(problem)


def reward(problem: Problem, completion: list[int]) -> float:
    """The reward: 1 for the right digit; another digit gets 0.5 minus 0.1 for each unit of difference, at least 0; other text gets
    0."""
    if is_right(problem, completion):
        return 1.0
    if (
        len(completion) != 2
        or not chr(completion[0]).isascii()
        or not chr(completion[0]).isdigit()
        or completion[1] != END
    ):
        return 0.0
    return max(0.0, 0.5 - 0.1 * abs(int(chr(completion[0])) - int(problem[1])))
