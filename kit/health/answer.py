"""Types of `kit why`: an answer, its evidence, and a rule."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

# `wait` and `nothing to do` are the verdicts for healthy runs.
Verdict = Literal[
    "fix the code", "fix the job", "try again", "bad node", "ask the administrator", "wait", "nothing to do"
]
CODE: Verdict = "fix the code"
JOB: Verdict = "fix the job"
AGAIN: Verdict = "try again"
NODE: Verdict = "bad node"
ADMIN: Verdict = "ask the administrator"
WAIT: Verdict = "wait"
NOTHING: Verdict = "nothing to do"

LOGS, RANK_LOG, RESUME = "kit logs {run} --tail 50", "kit logs {run} --rank {rank} --tail 50", "kit resume {run}"
STATUS, SHOW_JOB = "kit status {run}", "scontrol show job {job_id}"
SUBMIT, WITHOUT_NODE = "kit submit {job_file}", "kit submit {job_file} --set slurm.exclude={node}"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A line of a file in the run folder. line: counted from 1; 0 for the whole file, or for an answer of Slurm."""

    file: str
    line: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The reason for a run's state. line: the reason in one sentence. advice: what to do, in words. next: the command to run."""

    rule: str
    verdict: Verdict
    line: str
    advice: str
    next: str
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule that applies if `pattern` matches a text. Its named groups fill `says`, `advice` and `next`.

    says: what happened, without the subject's name. victim: the cause is the end of another rank. code: the rule applies only to
    this exit code.
    """

    id: str
    verdict: Verdict
    pattern: str
    says: str
    advice: str
    next: str = RANK_LOG
    victim: bool = False
    code: int | None = None

    def search(self, text: str) -> re.Match[str] | None:
        """The match in `text`; `^` and `$` match at each line."""
        return re.search(self.pattern, text, re.MULTILINE)


def filled(template: str, *values: Mapping[str, object]) -> str:
    """A sentence with its `{names}` filled in. A name without a value becomes empty; the last mapping with the name wins."""
    known: defaultdict[str, object] = defaultdict(str)
    for mapping in values:
        known.update({name: value for name, value in mapping.items() if value is not None})
    return template.format_map(known)
