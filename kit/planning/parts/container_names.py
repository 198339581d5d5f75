"""Constants of the containers that Pyxis unpacks."""

from __future__ import annotations

from typing import Any

from kit.planning import steps
from kit.planning.decisions import Decisions
from kit.planning.parts.part import Code


def _constants(decisions: Decisions) -> dict[str, Any]:
    return {
        "KIT_CONTAINER_ARGV": steps.container_step(decisions),
        "KIT_PYXIS_UNPACKS": {None: "", True: "yes", False: "no"}[decisions.resolved.cluster.container.pyxis_unpacks],
        "KIT_UNPACK_TIMEOUT": decisions.job.preflight.unpack_s,
    }


CODE = Code(constants=_constants)
