"""Accounts: the names under which a second of a rank is booked, and their meanings."""

from __future__ import annotations

from enum import StrEnum


class Account(StrEnum):
    """One account. The members are in the order of a run; every table and bar uses this order."""

    QUEUE = "queue"
    HELD = "held after requeue"
    NOT_SUBMITTED = "before resume"
    SETUP = "allocation set-up"
    PREFLIGHT = "preflight"
    ONCE = "once"
    IMAGE = "image"
    START = "program start"
    RENDEZVOUS = "rendezvous"
    FIRST_STEP = "first step"
    PRODUCTIVE = "productive steps"
    STRAGGLERS = "waiting for stragglers"
    INPUT = "input wait"
    SAVE = "save stall"
    EVALUATION = "evaluation"
    LOST = "lost steps"
    STALL = "stall"
    PROGRAM = "program, not split"
    RESTART = "restart"
    TEARDOWN = "teardown"
    IDLE_END = "idle at the end"
    SPARE = "idle spare"
    UNATTRIBUTED = "unattributed"


MEANINGS = {
    Account.QUEUE: "waits in Slurm's queue",
    Account.HELD: "from a requeue to the next start: Slurm's hold, and the queue again",
    Account.NOT_SUBMITTED: "has ended, and `kit resume` has not submitted it yet",
    Account.SETUP: "prolog, and the batch script before its first check",
    Account.PREFLIGHT: "checks of nodes and of the container",
    Account.ONCE: "the lines of [once]",
    Account.IMAGE: "stages, mounts or unpacks the image; Slurm starts the tasks",
    Account.START: "set-up lines, launcher, interpreter, imports, the model",
    Account.RENDEZVOUS: "ranks find each other; a role waits for those that it needs",
    Account.FIRST_STEP: "the first step of a process, and what it compiles",
    Account.PRODUCTIVE: "steps that were kept",
    Account.STRAGGLERS: "communication beyond that of the rank with the least",
    Account.INPUT: "waits for a batch",
    Account.SAVE: "the loop waits for a checkpoint",
    Account.EVALUATION: "validations",
    Account.LOST: "steps after the last checkpoint, made once more later",
    Account.STALL: "reported nothing for longer than a stall may last, up to its end",
    Account.PROGRAM: "the program ran and did not report its phases",
    Account.RESTART: "from the first failure of an attempt to the next attempt",
    Account.TEARDOWN: "from the last step, or the last failure, to the end of the job",
    Account.IDLE_END: "has ended, and other ranks still work",
    Account.SPARE: "spare nodes",
    Account.UNATTRIBUTED: "not known",
}

# Accounts of time without an allocation. It is not paid for.
NOT_HELD = frozenset({Account.QUEUE, Account.HELD, Account.NOT_SUBMITTED})
# Accounts of progress in training, which the published definitions of goodput call productive.
KEPT = frozenset({Account.PRODUCTIVE, Account.PROGRAM})
# Accounts of time in the training loop, including the waits in it.
LOOP = (Account.PRODUCTIVE, Account.STRAGGLERS, Account.INPUT)
