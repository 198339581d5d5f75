"""The digests of the prepared data that a run trains on, for the manifest."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from kit.files import untrusted_files

if TYPE_CHECKING:
    from kit.planning.decisions import Decisions

_FILE, _FORMAT = "prepared.json", "kit-tokens"


def digests(decisions: Decisions) -> dict[str, str]:
    """Each `--data` argument that names prepared data -> its digest. Data that this machine cannot see are left out."""
    found = {}
    for named in _named(decisions.job.args):
        digest = _digest(_on_the_host(decisions, named) / _FILE)
        if digest:
            found[named] = digest
    return found


def _named(args: Sequence[str]) -> Iterator[str]:
    for word, following in pairwise([*args, ""]):
        name, equals, value = word.partition("=")
        if name == "--data" and (value or following):
            yield value if equals else following


def _on_the_host(decisions: Decisions, named: str) -> Path:
    """The host's path for a path that the program sees: through the innermost mount that contains it."""
    inside = PurePosixPath(decisions.paths.inside.workdir, named)
    if not decisions.runtime.containerized:
        return Path(inside)
    # The workspace is the job's folder or a copy of it that is not made yet, so look in the folder.
    sources = {mount.target: mount.source for mount in decisions.paths.mounts}
    sources[decisions.paths.inside.workspace] = str(decisions.resolved.job_dir)
    for target in sorted(sources, key=len, reverse=True):
        if inside.is_relative_to(target):
            return Path(sources[target], inside.relative_to(target))
    return Path(inside)


def _digest(path: Path) -> str | None:
    try:
        content = json.loads(untrusted_files.read_bytes(path))
    except (OSError, ValueError, RecursionError):
        return None
    digest = content.get("digest") if isinstance(content, dict) and content.get("format") == _FORMAT else None
    return digest if isinstance(digest, str) else None
