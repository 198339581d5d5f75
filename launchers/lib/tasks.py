"""Tasks that a policy learns by rewards: sums, which need no file, or the user's problems and reward function.

A line of the problems' file has a `prompt`, a text that the answer continues from, or `messages`, which the chat template lays out;
whatever else it has, such as the right answer, is for the reward function.
"""

import argparse
import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import arithmetic, chats, rewards, vocabulary
from .documents import Bad, records
from .faults import Refused

Problem = Any  # JSON


@dataclass(frozen=True, kw_only=True)
class Task:
    """Problems to train on and problems held out. end: the token that ends an answer. vocabulary: token ids are below it.

    prompt: a problem -> its tokens. reward: a problem and the tokens of an answer -> a number; 1 or more is right. guess: an answer
    that has the right form and is right by chance only; None where a new policy is not taught the form first.
    """

    training: list[Problem]
    held_out: list[Problem]
    end: int
    vocabulary: int
    told: str
    prompt: Callable[[Problem], list[int]]
    reward: Callable[[Problem, list[int]], float]
    guess: Callable[[random.Random], list[int]] | None = None


def opened(args: argparse.Namespace) -> Task:
    """The task of the options; a program whose --problems or --reward cannot be ends here."""
    try:
        return _problems(args) if args.problems or args.reward else sums()
    except Refused as error:
        raise SystemExit(said(error)) from None
    except OSError as error:
        raise SystemExit(f"{error.filename}: {error.strerror}") from None


def said(error: Refused) -> str:
    """The error as the program's last words."""
    return error.message + (f"\n  try: {error.hint}" if error.hint else "")


def sums() -> Task:
    """lib/arithmetic.py as a task."""
    training, held_out = arithmetic.problems()
    return Task(
        training=list(training),
        held_out=list(held_out),
        end=arithmetic.END,
        vocabulary=256,
        told="sums",
        prompt=lambda problem: arithmetic.encode(problem[0]),
        reward=lambda problem, tokens: arithmetic.reward(tuple(problem), tokens),
        guess=arithmetic.guess,
    )


def _problems(args: argparse.Namespace) -> Task:
    if not (args.problems and args.reward):
        raise Refused(
            "--problems and --reward need each other", hint="--problems problems.jsonl --reward reward.py:reward"
        )
    if not 0 < args.validation < 1:
        raise Refused(f"--validation {args.validation}: a share of the problems, above 0 and below 1")
    tokenizer = chats.tokenizer(args.tokenizer, args.model)
    function = rewards.opened(args.reward, timeout=args.reward_timeout)
    reader = _Reader(tokenizer, args)
    parts: tuple[list[Problem], list[Problem]] = ([], [])
    bad, digest = 0, hashlib.sha256(tokenizer.digest.encode())
    limit = int(args.validation * 2**64)
    for where, record in records(args.problems):
        try:
            reader.check(record)
        except chats.BadChat as error:
            if not args.skip_bad:
                raise Refused(f"{where}: {error}", hint="mend it, or --skip-bad to leave such problems out") from None
            bad += 1
            continue
        content = json.dumps(record, sort_keys=True).encode()
        digest.update(content)
        # By the problem itself, so that copies of one are on the same side.
        number = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")
        parts[number < limit].append(record)
    for name, part in zip(("to train on", "held out"), parts, strict=True):
        if not part:
            raise Refused(
                f"--problems {args.problems}: no problem is {name} ({sum(map(len, parts))} in all, {bad} bad)",
                hint="more problems, or --validation 0.2",
            )
    end = reader.end()
    digest.update(json.dumps([args.validation, end, reader.template]).encode())

    def reward(problem: Problem, tokens: list[int]) -> float:
        answer = tokens[:-1] if tokens and tokens[-1] == end else tokens
        try:
            return function(reader.text(problem), tokenizer.decode(answer), problem)
        except Refused as error:
            # Looked up only now: a place for each of a million problems would be memory for an error that ends the run.
            place = next((where for where, record in records(args.problems) if record == problem), "")
            raise Refused(
                f"{error.message}\n  the problem: {place}: {json.dumps(problem)[:300]}", hint=error.hint
            ) from error

    return Task(
        training=parts[0],
        held_out=parts[1],
        end=end,
        vocabulary=tokenizer.size,
        told=f"sha256:{digest.hexdigest()}",
        prompt=reader.tokens,
        reward=reward,
    )


class _Reader:
    """Problems as prompts. The chat template is opened at the first problem that has messages."""

    def __init__(self, tokenizer: vocabulary.Vocabulary, args: argparse.Namespace) -> None:
        self._tokenizer, self._args = tokenizer, args
        self._layout: chats.Layout | None = None
        self._has_text = False

    @property
    def template(self) -> str:
        """The chat template's text; empty where no problem has messages."""
        return self._layout.source if self._layout else ""

    def check(self, problem: Any) -> None:
        """BadChat where it is not a problem, or its prompt leaves no room for an answer."""
        if isinstance(problem, Bad):
            raise chats.BadChat(problem.why)
        if "messages" in problem:
            self._layout = self._layout or chats.Layout(self._tokenizer, self._args.chat_template)
        elif isinstance(problem.get("prompt"), str):
            self._has_text = True
        else:
            raise chats.BadChat(f"neither a text under 'prompt' nor 'messages' ({', '.join(list(problem)[:8])})")
        length = len(self.tokens(problem))
        if not length:
            raise chats.BadChat("its prompt is empty")
        if length + self._args.max_tokens > self._args.seq_len:
            raise chats.BadChat(
                f"its prompt has {length} tokens: with --max-tokens {self._args.max_tokens} over --seq-len {self._args.seq_len}"
            )

    def tokens(self, problem: Problem) -> list[int]:
        if "messages" in problem and self._layout:
            return self._layout.prompt(problem["messages"])
        return self._tokenizer.encode([problem["prompt"]])[0]

    def text(self, problem: Problem) -> str:
        """What the answer follows, as the reward function gets it."""
        if "messages" in problem and self._layout:
            return self._layout.text(problem["messages"], ask=True)
        return str(problem["prompt"])

    def end(self) -> int:
        """The token that ends an answer: of a turn, or of a text."""
        if self._layout and self._has_text:
            raise Refused(
                f"--problems {self._args.problems}: some have 'prompt' and some 'messages'", hint="one or the other"
            )
        if self._layout:
            return self._layout.end()
        if self._tokenizer.end is None:
            raise Refused(f"--tokenizer {self._tokenizer.name}: no token ends a text")
        return int(self._tokenizer.end)
