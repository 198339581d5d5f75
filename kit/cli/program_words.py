"""Words after `--` on the command line: arguments of the job's program."""

from __future__ import annotations

from collections.abc import Sequence

# The commands whose job's program has arguments that can be changed.
COMMANDS = frozenset({"render", "rerun", "shell", "submit", "sweep"})
_SEPARATOR = "--"
# prime-rl's commands name a file as `@ FILE`, and so may these of the kit.
_WITH_FILE, _FILE = frozenset({"render", "submit"}), "@"


def as_overrides(words: Sequence[str]) -> list[str]:
    """The command line with the words after `--` as values of `--set`, which every parser reads: config.program_arguments.split."""
    if words and words[0] in _WITH_FILE:
        words = [word for place, word in enumerate(words) if word != _FILE or _SEPARATOR in words[:place]]
    if not words or words[0] not in COMMANDS or _SEPARATOR not in words:
        return list(words)
    at = list(words).index(_SEPARATOR)
    if at + 1 == len(words):
        return list(words[:at])
    return [*words[:at], *(f"--set={word}" for word in words[at:])]
