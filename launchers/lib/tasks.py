"""Tasks that a policy learns by rewards: sums, which need no file, or the user's problems and reward function.

Each line of the problems file has a `prompt`, a text that the answer continues, or `messages`, which the chat template formats.
Its other keys, such as the right answer, are for the reward function.
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
    """Problems to train on and held-out problems. end: the token that ends an answer. vocabulary: every token id is below it.

    told: identifies the task in a checkpoint. prompt: a problem -> its tokens. reward: a problem and the tokens of an answer -> a
    number; 1 or more is right. guess: draws an answer of the right form, which is right only by chance, to teach a new policy the
    form first; None: a new policy is not taught the form.
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
    """The task of the options. Ends the program where --problems or --reward cannot be used."""
    try:
        return _problems(args) if args.problems or args.reward else sums()
    except Refused as error:
        raise SystemExit(said(error)) from None
    except OSError as error:
        raise SystemExit(f"{error.filename}: {error.strerror}") from None


def said(error: Refused) -> str:
    """The error as the program's last message."""
    return error.message + (f"\n  try: {error.hint}" if error.hint else "")


def sums() -> Task:
    """The task of lib/arithmetic.py."""
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
                raise Refused(
                    f"{where}: {error}", hint="correct it, or --skip-bad to leave such problems out"
                ) from None
            bad += 1
            continue
        content = json.dumps(record, sort_keys=True).encode()
        digest.update(content)
        # Chosen by the problem's content, so that copies of a problem are on the same side.
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
            # Search only now: the places of a million problems would take memory for an error that ends the run.
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
    """Turns problems into prompts. Opens the chat template at the first problem that has messages."""

    def __init__(self, tokenizer: vocabulary.Vocabulary, args: argparse.Namespace) -> None:
        self._tokenizer, self._args = tokenizer, args
        self._layout: chats.ChatLayout | None = None
        self._has_text = False

    @property
    def template(self) -> str:
        """The chat template's text; empty where no problem has messages."""
        return self._layout.source if self._layout else ""

    def check(self, problem: Any) -> None:
        """Raise BadChat for a record that is no problem, or whose prompt leaves no room for an answer."""
        if isinstance(problem, Bad):
            raise chats.BadChat(problem.why)
        if "messages" in problem:
            self._layout = self._layout or chats.ChatLayout(self._tokenizer, self._args.chat_template)
        elif isinstance(problem.get("prompt"), str):
            self._has_text = True
        else:
            raise chats.BadChat(f"neither a text under 'prompt' nor 'messages' ({', '.join(list(problem)[:8])})")
        length = len(self.tokens(problem))
        if not length:
            raise chats.BadChat("its prompt is empty")
        if length + self._args.max_tokens > self._args.seq_len:
            raise chats.BadChat(
                f"its prompt has {length} tokens: with --max-tokens {self._args.max_tokens} more than "
                f"--seq-len {self._args.seq_len}"
            )

    def tokens(self, problem: Problem) -> list[int]:
        if "messages" in problem and self._layout:
            return self._layout.prompt(problem["messages"])
        return self._tokenizer.encode([problem["prompt"]])[0]

    def text(self, problem: Problem) -> str:
        """The text before the answer, as the reward function gets it."""
        if "messages" in problem and self._layout:
            return self._layout.text(problem["messages"], ask=True)
        return str(problem["prompt"])

    def end(self) -> int:
        """The token that ends an answer: the end of a turn for messages, the end of a text for prompts."""
        if self._layout and self._has_text:
            raise Refused(
                f"--problems {self._args.problems}: some have 'prompt' and some 'messages'", hint="one or the other"
            )
        if self._layout:
            return self._layout.end()
        if self._tokenizer.end is None:
            raise Refused(f"--tokenizer {self._tokenizer.name}: no token ends a text")
        return int(self._tokenizer.end)
