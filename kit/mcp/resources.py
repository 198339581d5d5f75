"""Resources that an agent can read: the schema of job files, the skill, and of each run its manifest and its report."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from kit import data_folders
from kit.errors import RunError
from kit.files import untrusted_files
from kit.mcp import as_data, find_own, run_tools
from kit.mcp.session import AgentSession
from kit.record.manifest import read_manifest
from kit.schema.run_paths import RunPaths

JSON, MARKDOWN = "application/json", "text/markdown"
# Address -> its name and type.
FIXED: Mapping[str, tuple[str, str]] = {
    "kit://schema/job": ("JSON Schema of job.toml", JSON),
    "kit://skill": ("How to use the kit", MARKDOWN),
}
TEMPLATES: Mapping[str, str] = {
    "kit://runs/{run}/manifest": "What was submitted: image digest, seed, versions, command",
    "kit://runs/{run}/report": "State, explanation and last numbers of a run",
}


def skill() -> str:
    """docs/agents/SKILL.md, in the wheel or the checkout."""
    return untrusted_files.read_text(data_folders.packaged() / "docs" / "agents" / "SKILL.md")


def content(session: AgentSession, uri: str) -> tuple[str, str]:
    """Text and type of a resource. RunError if there is none at this address."""
    if uri == "kit://schema/job":
        from kit.schema import schemas

        return json.dumps(schemas()["job"].model_json_schema(), indent=2), JSON
    if uri == "kit://skill":
        return skill(), MARKDOWN
    found = re.fullmatch(r"kit://runs/([^/]+)/(manifest|report)", uri)
    if found is None:
        raise RunError(f"{uri!r}: no resource", hint=f"one of: {', '.join([*FIXED, *TEMPLATES])}")
    name, kind = found.groups()
    run_dir = find_own.find_run(name, to=f"read its {kind}")
    if kind == "manifest":
        data = as_data.marked(read_manifest(RunPaths(run_dir).manifest).model_dump(mode="json"))
    else:
        data = {
            "status": run_tools.run_status(session, run=run_dir.name),
            "why": run_tools.explain_run(session, run=run_dir.name),
        }
    return json.dumps(data, indent=2), JSON
