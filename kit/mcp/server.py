"""Serves the tools over stdin and stdout with the official SDK. No port is opened."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from kit.errors import KitError
from kit.mcp import as_data, resources
from kit.mcp import tools as kit_tools
from kit.mcp.session import AgentSession
from kit.mcp.tools import TOOLS
from kit.version import __version__

_INSTRUCTIONS = (
    "slurm-kit: plans, submits, watches and explains training runs on Slurm. A submit is two calls: plan_job or rerun, which say "
    "what a run may cost, then submit_run with the plan_id. Then call wait_for_runs, and explain_run when a run has failed. "
    f"Limits belong to the user, and no tool changes them. {as_data.NOTE}"
)


def serve(session: AgentSession) -> None:
    """Serve until the client closes stdin."""
    asyncio.run(_serve(make_server(session)))


async def _serve(server: Server[Any]) -> None:
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def make_server(session: AgentSession) -> Server[Any]:
    """The server of a session."""

    async def list_tools(_context: Any, _params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_tool(name) for name in TOOLS])

    async def call_tool(context: Any, params: Any) -> types.CallToolResult:
        async def progress(at: float, most: float, message: str) -> None:
            await context.session.report_progress(at, most, message)

        answer, failed = await kit_tools.call(session, params.name, params.arguments or {}, progress=progress)
        text = types.TextContent(type="text", text=json.dumps(answer))
        return types.CallToolResult(content=[text], structured_content=answer, is_error=failed)

    async def list_resources(_context: Any, _params: Any) -> types.ListResourcesResult:
        entries = [types.Resource(uri=uri, name=name, mime_type=kind) for uri, (name, kind) in resources.FIXED.items()]
        return types.ListResourcesResult(resources=entries)

    async def list_templates(_context: Any, _params: Any) -> types.ListResourceTemplatesResult:
        templates = [
            types.ResourceTemplate(uri_template=uri, name=name, mime_type=resources.JSON)
            for uri, name in resources.TEMPLATES.items()
        ]
        return types.ListResourceTemplatesResult(resource_templates=templates)

    async def read_resource(_context: Any, params: Any) -> types.ReadResourceResult:
        try:
            text, kind = await asyncio.to_thread(resources.content, session, str(params.uri))
        except KitError as error:
            told = as_data.error(error)["error"]
            raise MCPError(code=types.INVALID_PARAMS, message=told["message"], data=told) from None
        content = types.TextResourceContents(uri=params.uri, text=text, mime_type=kind)
        return types.ReadResourceResult(contents=[content])

    return Server(
        "slurm-kit",
        version=__version__,
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
    )


def _tool(name: str) -> types.Tool:
    tool = TOOLS[name]
    return types.Tool(
        name=name,
        description=tool.description,
        input_schema=tool.arguments.model_json_schema(),
        annotations=types.ToolAnnotations(read_only_hint=not tool.writes, destructive_hint=name == "cancel_run"),
    )
