"""Sums of small numbers as text: the task of launchers/rl and launchers/sft. Whether an answer is right, code can tell.

A problem is a prompt and its answer, such as ("1+0+2=", "3"). A completion is the answer's bytes and a newline, END. Which
problems are held out for the test is the same everywhere.
"""

import itertools
import random

END = 10  # "\n", after which sampling stops

Problem = tuple[str, str]


def problems(terms: int = 4, largest: int = 2) -> tuple[list[Problem], list[Problem]]:
    """All sums of 2 to `terms` numbers from 0 to `largest`, whose result has one digit: training, and one in four held out."""
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
    """Text as tokens: its bytes."""
    return list(text.encode())


def solution(problem: Problem) -> list[int]:
    """The tokens that a right completion has."""
    return [*encode(problem[1]), END]


def guess(draw: random.Random) -> list[int]:
    """A completion that has the form of an answer, and is right by chance only: one digit in ten."""
    return [*encode(str(draw.randrange(10))), END]


def is_right(problem: Problem, completion: list[int]) -> bool:
    """Whether the completion is the answer and nothing else."""
    return completion == solution(problem)


def reward(problem: Problem, completion: list[int]) -> float:
    """1 for the right answer; at most 0.4 for another digit, less by 0.1 for each unit that it is off; 0 without an answer."""
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
