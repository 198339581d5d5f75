"""Excludes programs of the kit that report their steps by kit_rank, and so need no kit_callbacks."""

from __future__ import annotations

from kit import data_folders
from kit.planning.decisions import Decisions
from kit.planning.parts.part import Code

# Launchers whose own programs report by kit_rank: those without a framework, and these. Others run a loop that is not the kit's.
_WITHOUT = {None, "deepspeed", "diloco"}


def _asked_by(decisions: Decisions) -> str | None:
    resolved = decisions.resolved
    own = (
        decisions.main.plain
        and decisions.job.is_launchers
        and resolved.launcher_dir.is_relative_to(data_folders.packaged())
    )
    return None if own and resolved.launcher.framework in _WITHOUT else "script"


CODE = Code(asked_by=_asked_by)
