"""The tools by name: their arguments, what they do, and how they are called. Unknown arguments are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kit.errors import KitError, UsageError, did_you_mean
from kit.mcp import as_data, find_own, planning_tools, read_log, run_tools, site_tools, wait_for_change
from kit.mcp.session import AgentSession
from kit.mcp.wait_for_change import Progress

_DAY_S = 86_400.0
Run = Annotated[
    str, Field(description="Id of a run, the first characters of one, or its Slurm job id.", max_length=200)
]
Overrides = Annotated[
    list[str],
    Field(
        description="Keys to change, such as 'resources.nodes=2'; after '--', words for the program.", max_length=100
    ),
]
Cluster = Annotated[
    str | None, Field(description="A cluster by name; default: the job's or the user's.", max_length=100)
]


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PlanJob(_Arguments):
    """Plan a job file: nothing is submitted. The answer has a plan_id, what the run may cost at most, and warnings."""

    job_file: str = Field(default="job.toml", description="A job file of the project, or its folder.", max_length=1000)
    cluster: Cluster = None
    overrides: Overrides = []


class SubmitRun(_Arguments):
    """Submit exactly what plan_job or rerun has planned. A plan is used once, and is refused if its job has changed since."""

    plan_id: str = Field(description="From plan_job or rerun.", max_length=100)


class WaitForRuns(_Arguments):
    """Wait until the first of these runs ends or stalls. One call for hours, with progress notifications."""

    runs: list[Run] = Field(min_length=1, max_length=500)
    timeout_s: float = Field(default=3600.0, ge=0, le=_DAY_S, description="Seconds; then the states are returned.")
    starts: bool = Field(default=False, description="Also return when a run starts or is requeued.")


class ShowStatus(_Arguments):
    """The state of a run: nodes, exit code, last step."""

    run: Run


class ExplainRun(_Arguments):
    """Why a run ended, or why it waits: a verdict, the first failed rank, what to do, and the lines that show it."""

    run: Run


class ReadLog(_Arguments):
    """A part of a log of a run: its last bytes, or those from an offset."""

    run: Run
    log: str | None = Field(
        default=None, description="Such as 'batch', 'task', 'rank-0'; default: the first.", max_length=200
    )
    rank: int | None = Field(default=None, ge=0, description="The log of this rank.")
    offset: int | None = Field(default=None, ge=0, description="First byte; default: so that the last bytes are read.")
    most_bytes: int = Field(default=8192, ge=1, le=read_log.MOST_BYTES, description="Bytes at most.")


class CompareRuns(_Arguments):
    """The differences of two runs: outcome, metrics, keys, code, image, nodes."""

    a: Run
    b: Run


class Rerun(_Arguments):
    """Plan a repetition of a run with the same code, image, job and seed. Nothing is submitted: submit_run does it."""

    run: Run
    cluster: Cluster = None
    overrides: Overrides = []
    from_step: int | None = Field(default=None, ge=0, description="Begin at a copy of this checkpoint of the run.")


class CancelRun(_Arguments):
    """Cancel a run that this server's tools have submitted. Its ranks are asked to save and end."""

    run: Run


class ListRuns(_Arguments):
    """The user's newest runs of this project."""

    newest: int = Field(default=20, ge=1, le=200)


class ClusterInfo(_Arguments):
    """The clusters, the user's limits, and what was spent. No tool changes a limit."""

    name: Cluster = None


class Images(_Arguments):
    """The images that jobs can run in."""

    cluster: Cluster = None


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool. call: its function, which runs in a thread; None for the one that waits. writes: whether it submits or cancels."""

    arguments: type[_Arguments]
    call: Callable[..., dict[str, Any]] | None = None
    writes: bool = False

    @property
    def description(self) -> str:
        """For the agent."""
        return self.arguments.__doc__ or ""


TOOLS: Mapping[str, Tool] = {
    "plan_job": Tool(arguments=PlanJob, call=planning_tools.plan_job),
    "submit_run": Tool(arguments=SubmitRun, call=planning_tools.submit_run, writes=True),
    "wait_for_runs": Tool(arguments=WaitForRuns),
    "run_status": Tool(arguments=ShowStatus, call=run_tools.run_status),
    "explain_run": Tool(arguments=ExplainRun, call=run_tools.explain_run),
    "read_log": Tool(arguments=ReadLog, call=run_tools.read_log),
    "compare_runs": Tool(arguments=CompareRuns, call=run_tools.compare_runs),
    "rerun": Tool(arguments=Rerun, call=planning_tools.rerun),
    "cancel_run": Tool(arguments=CancelRun, call=run_tools.cancel_run, writes=True),
    "list_runs": Tool(arguments=ListRuns, call=run_tools.list_runs),
    "cluster_info": Tool(arguments=ClusterInfo, call=site_tools.cluster_info),
    "images": Tool(arguments=Images, call=site_tools.images),
}


async def call(
    session: AgentSession, name: str, arguments: Mapping[str, Any], *, progress: Progress
) -> tuple[dict[str, Any], bool]:
    """The answer of a tool, and whether it is an error. Only a defect of the kit raises."""
    try:
        tool = TOOLS.get(name)
        if tool is None:
            raise UsageError(f"no tool {name!r}", hint=did_you_mean(name, TOOLS) or f"one of: {', '.join(TOOLS)}")
        given = _checked(tool, name, arguments)
        if tool.call is None:
            assert isinstance(given, WaitForRuns)
            return await _wait(session, given, progress), False
        # Names that a function would shadow have another one there.
        words = {"log_name" if key == "log" else key: value for key, value in given}
        return await asyncio.to_thread(tool.call, session, **words), False
    except KitError as error:
        return as_data.error(error), True


def _checked(tool: Tool, name: str, arguments: Mapping[str, Any]) -> _Arguments:
    """The arguments. UsageError with all that is wrong."""
    try:
        return tool.arguments.model_validate(arguments)
    except ValidationError as error:
        known = ", ".join(tool.arguments.model_fields)
        wrong = [f"{'.'.join(map(str, one['loc'])) or name}: {one['msg']}" for one in error.errors(include_input=False)]
        raise UsageError(f"{name}: {'; '.join(wrong)}", hint=f"its arguments are: {known}") from None


async def _wait(session: AgentSession, given: WaitForRuns, progress: Progress) -> dict[str, Any]:
    found = [await asyncio.to_thread(find_own.find_run, name, to="wait for it") for name in given.runs]
    return await wait_for_change.wait(
        session, list(dict.fromkeys(found)), timeout_s=given.timeout_s, starts=given.starts, progress=progress
    )
