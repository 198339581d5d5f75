"""Types of `kit why`: an answer, its evidence, and a rule."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

# `wait` and `nothing to do` are of runs that are not sick.
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
    """A line of a file of the run folder. line: counted from 1; 0 where the whole file, or Slurm, says it."""

    file: str
    line: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Why a run is as it is. line: one sentence. advice: what to do, in words. next: the command to run."""

    rule: str
    verdict: Verdict
    line: str
    advice: str
    next: str
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule that a text decides. pattern: searched in it, its named groups fill `says`, `advice` and `next`.

    says: what happened, without its subject's name. victim: another rank's end is the cause. code: only of this exit code.
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
        """The match in `text`; the pattern's `^` and `$` are those of lines."""
        return re.search(self.pattern, text, re.MULTILINE)


def filled(template: str, *values: Mapping[str, object]) -> str:
    """A sentence with its `{names}`; a name without a value is empty, and the last mapping that has it wins."""
    known: defaultdict[str, object] = defaultdict(str)
    for mapping in values:
        known.update({name: value for name, value in mapping.items() if value is not None})
    return template.format_map(known)
