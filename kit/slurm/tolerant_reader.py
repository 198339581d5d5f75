"""Asks Slurm's commands, which are an unreliable network: a failed request is repeated, and a site's own lines are skipped.

Sites print lines before or after an answer (wrappers, login scripts, messages of the day). So each format of this package begins
with a mark, by which a line of the answer is recognized.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from kit import shell
from kit.slurm import run_local_or_ssh

# The start of a line that was asked for. squeue(1), sinfo(1): text before the first field of --format is printed as it is.
MARK = "kit|"
# Seconds before a failed request is repeated. A request that took long is not repeated: it has waited already.
_AGAIN_S = (0.5, 1.5)
_SLOW_S = 10.0


def ask(argv: Sequence[str], *, env: Mapping[str, str], timeout: float) -> str:
    """The output of a request that changes nothing. timeout: seconds for each try.

    ToolError if the program is missing, if it does not answer in time, or if the last try fails too.
    """
    pauses = iter(_AGAIN_S)
    while True:
        begun = time.monotonic()
        done = run_local_or_ssh.run(argv, env=env, timeout=timeout, check=False)
        if done.returncode == 0:
            return done.stdout
        pause = next(pauses, None)
        if pause is None or time.monotonic() - begun > _SLOW_S:
            raise shell.failed(done)
        time.sleep(pause)


def rows(text: str, fields: int) -> Iterator[list[str]]:
    """The fields of each line that begins with the mark; only the last field may contain a `|`. All other lines are skipped.

    A site's text without a newline may stand before the mark.
    """
    for line in text.split("\n"):
        _, marked, rest = line.partition(MARK)
        found = rest.split("|", fields - 1)
        if marked and len(found) == fields:
            yield found


def is_number(text: str) -> bool:
    """Whether a field is a number that Slurm may have printed."""
    return text.isascii() and text.isdecimal() and len(text) < 19
