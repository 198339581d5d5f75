"""Runs Slurm's commands on this machine, or on a login node over ssh. The environment decides which.

All modules of kit/slurm use this module, so they work the same with Slurm here and on a login node.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kit import shell
from kit.shell import Completed

if TYPE_CHECKING:
    from kit.ssh.connection import Connection


class OverSsh(dict[str, str]):
    """The environment of Slurm's commands on a cluster reached over ssh: variables in addition to those of the login."""

    def __init__(self, connection: Connection, inherited: Mapping[str, str] | None = None) -> None:
        super().__init__(inherited or {})
        self.connection = connection


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    input: str | None = None,  # noqa: A002 - as shell.run has it
    timeout: float | None = None,
    check: bool = True,
) -> Completed:
    """Run a command as `shell.run` does, on the machine where Slurm is."""
    if isinstance(env, OverSsh):
        return env.connection.run(argv, env=env, text=input, timeout=timeout, check=check)
    return shell.run(argv, env=env, input=input, timeout=timeout, check=check)


def with_variable(env: Mapping[str, str], name: str, value: str) -> Mapping[str, str]:
    """The same environment with one more variable."""
    if isinstance(env, OverSsh):
        return OverSsh(env.connection, {**env, name: value})
    return {**env, name: value}


def uid(env: Mapping[str, str]) -> str:
    """The user's numeric id on the machine where Slurm is."""
    return env.connection.uid if isinstance(env, OverSsh) else str(os.getuid())
