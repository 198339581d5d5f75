"""Defines a case of `kit why`, and programs that several cases run."""

from __future__ import annotations

from dataclasses import dataclass

JOB, CODE, AGAIN, NODE, ADMIN = "fix the job", "fix the code", "try again", "bad node", "ask the administrator"
NOTHING, WAIT = "nothing to do", "wait"

# Two ranks that meet by gloo; torch is imported here alone, so that other cases need none.
GROUP = """\
import datetime, os, sys, time
import torch, torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=6))
"""
TWO = "[resources]\nranks_per_node = 2\n"
FOUR, NODES_2 = TWO.replace("2", "4"), "[resources]\nnodes = 2\nranks_per_node = 1\n"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One job and what `kit why` has to answer. says: a pattern that its first line holds.

    job: lines of job.toml below `shape = "srun"`. program: program.py, one rank unless the job says otherwise. act: what make.py
    does once the job runs, or waits. torch: started by a Python that has it. printed: the message is a real one
    of hardware or a package that this machine lacks, printed by a program that then exits. live: kept before its end.
    """

    rule: str
    verdict: str
    says: str
    program: str = "raise SystemExit(0)\n"
    job: str = ""
    act: str = ""
    torch: bool = False
    printed: bool = False
    live: bool = False
    options: tuple[str, ...] = ("--no-container",)


def said(text: str, code: int = 1) -> str:
    """A program that prints a message to stderr, and ends."""
    return f"import sys\nsys.stderr.write({text!r})\nsys.stderr.flush()\nraise SystemExit({code})\n"


def raised(last: str, *, frames: str = '  File "/workspace/train.py", line 41, in step\n    loss.backward()\n') -> str:
    """The same with a traceback that ends in `last`, as rank 0 under torch prints it."""
    text = f"Traceback (most recent call last):\n{frames}{last}\n"
    return said("".join(f"[rank0]: {line}\n" for line in text.splitlines()))
