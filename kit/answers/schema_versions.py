"""Versions of the answers that commands print with --json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Fields that came after version 1: command -> field, as `nodes[].gpus` -> the version that brought it. An answer's version is the
# highest of its fields. A field that goes, or changes its type, brings a new version, too.
SINCE: Mapping[str, Mapping[str, int]] = {}
# Commands whose answers are those of others, with one version. Manifests have the version of manifest.json.
_SAME = {"submit": "render", "rerun": "render", "import-image": "build-image"}


def since(command: str) -> Mapping[str, int]:
    """The fields of an answer that came after version 1, with their versions."""
    return SINCE.get(_SAME.get(command, command), {})


def version(command: str) -> int:
    """The version of what `kit COMMAND --json` prints."""
    return max(since(command).values(), default=1)


def versioned(command: str, answer: Any) -> Any:
    """The answer with its version: an object has the key `schema_version`, a list has it in each of its objects."""
    if isinstance(answer, list | tuple):
        return [versioned(command, one) for one in answer]
    return answer if "schema_version" in answer else {"schema_version": version(command), **answer}
