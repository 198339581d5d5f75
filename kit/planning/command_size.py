"""Refuses a program whose arguments and environment Linux would not start: execve(2) fails on the nodes with E2BIG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kit.errors import ConfigError, Fault
from kit.schema.job import MOST_BYTES_OF_A_STRING

# A quarter of the stack's limit, which is 8 MiB by default, for all strings and a pointer to each (execve(2)).
MOST_BYTES = 2 << 20
# Left to what Slurm, the container and the kit itself put into a rank's environment.
OTHERS_BYTES = 256 << 10
_POINTER = 8


def check(words: Sequence[str], env: Mapping[str, str], *, file: str) -> None:
    """ConfigError if the program's arguments and variables are too long for one string, or too many for one program."""
    sizes = [("args", word, _size(word)) for word in words]
    sizes += [(f"env.{name}", name, _size(f"{name}={value}")) for name, value in env.items()]
    faults = [
        Fault(
            key=key,
            problem=f"{size:,} bytes are more than Linux passes in one string ({MOST_BYTES_OF_A_STRING:,})",
            hint=_HINT,
        )
        for key, _, size in sizes
        if size > MOST_BYTES_OF_A_STRING
    ]
    total, most = sum(size + _POINTER for _, _, size in sizes), MOST_BYTES - OTHERS_BYTES
    if total > most and not faults:
        larger = "env" if sum(size for key, _, size in sizes if key != "args") * 2 > total else "args"
        given, limit = f"{total / 1e6:.2f} MB", f"{most / 1e6:.2f} MB"
        problem = f"the program's arguments and variables are {given}; Linux passes {limit} beside those of Slurm"
        faults = [Fault(key=larger, problem=problem, hint=_HINT)]
    if faults:
        raise ConfigError.of(*faults, file=file)


_HINT = "write the long values into a file beside the job file, and pass its path"


def _size(text: str) -> int:
    return len(text.encode(errors="surrogateescape")) + 1
