"""Parts of a site's own: the folder that [parts] of the cluster's file names."""

from __future__ import annotations

from typing import Any

from kit.planning.decisions import Decisions
from kit.planning.parts.part import Code

# Time limit of a phase, in seconds.
_LIMIT_S = 60


def _asked_by(decisions: Decisions) -> str | None:
    return f"parts.folder of cluster {decisions.resolved.cluster_name}"


def _constants(decisions: Decisions) -> dict[str, Any]:
    return {
        "KIT_SITE_PARTS": [" ".join((part.name, *part.phases)) for part in decisions.resolved.site_parts],
        "KIT_SITE_PARTS_LIMIT": decisions.resolved.cluster.parts.timeout_s or _LIMIT_S,
    }


CODE = Code(asked_by=_asked_by, constants=_constants)
