"""kit runs, kit status, kit logs, kit tmux, kit cancel."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kit.text import clean

if TYPE_CHECKING:
    from kit.runs.status import Status
    from kit.runs.submit import Prepared
    from kit.slurm.client import JobId, QueuedJob

RunName = Annotated[
    str | None,
    typer.Argument(metavar="[RUN]", help="Run folder, id, start of an id, or Slurm job id; default: the newest."),
]
RunOrSweep = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN|SWEEP]",
        help="Run folder, id, start of an id, Slurm job id, or a sweep's id; default: the newest run.",
    ),
]
RunsDir = Annotated[
    Path | None, typer.Option("--runs", help="Folder of runs; default: those of all clusters.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def runs(runs_dir: RunsDir = None, as_json: AsJson = False) -> None:
    """List the runs of this project, with one question to Slurm for all of them."""
    from kit.cli import table
    from kit.runs import history, queues, registry
    from kit.runs import status as of

    found = of.of_facts(registry.find_all(_folders(runs_dir)), queue=queue())
    found = history.add(found, ask=queues.history(say=_warn))
    if as_json:
        print(json.dumps([_listed(s) for s in found], indent=2))
        return
    headings = ("run", "job", "cluster", "state", "code", "world", "submitted")
    table.show(headings, [_row(one) for one in found], drop=("cluster", "world", "submitted", "code", "job"))
    for one in found:
        if one.facts.problem:
            print(f"{one.run_dir.name}: {clean(one.facts.problem)}", file=sys.stderr)


def _row(one: Status) -> tuple[str, ...]:
    from kit.planning.placement import world_size

    made = one.facts
    code = "" if one.exit_code is None else str(one.exit_code)
    world = world_size(made.world_sizes)
    submitted = datetime.fromtimestamp(made.submitted_at, UTC)
    return made.run_id, str(one.job_id or ""), made.cluster, one.state, code, world, f"{submitted:%Y-%m-%d %H:%M}"


def status(run: RunName = None, runs_dir: RunsDir = None, as_json: AsJson = False) -> None:
    """Say how one run stands: state, nodes, exit code, image, where its files are; of replica groups the last quorum."""
    from kit.planning.placement import sizes_text
    from kit.runs import history, metrics, queues, registry
    from kit.runs import status as of

    found = of.of([registry.find_one(run, _folders(runs_dir))], queue=queue())
    (one,) = history.add(found, ask=queues.history(say=_warn), every=True)
    facts, quorum = _listed(one), metrics.quorum(one.run_dir)
    if as_json:
        print(json.dumps({**facts, "quorum": dataclasses.asdict(quorum) if quorum else None}, indent=2))
        return
    facts["world_sizes"] = sizes_text(one.facts.world_sizes)
    facts["quorum"] = f"{quorum}, {quorum.time}" if quorum else None
    width = max(map(len, facts))
    for name, value in facts.items():
        if value not in (None, ""):
            print(f"{name:<{width}}  {clean(str(value))}")


def logs(
    run: RunName = None,
    role: Annotated[
        str | None,
        typer.Argument(metavar="[ROLE]", help="One role only, of a run that has several.", show_default=False),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines come, until the run ends.")] = False,
    rank: Annotated[int | None, typer.Option("--rank", "-r", min=0, help="One rank only.")] = None,
    runs_dir: RunsDir = None,
) -> None:
    """Print the logs of a run, each line with its source in front."""
    from kit.runs import logs as reading
    from kit.runs import registry

    run_dir = registry.find_one(run, _folders(runs_dir))
    reading.require_role(run_dir, role)
    if follow:
        follow_run(run_dir, rank=rank, role=role, fail=False)
        return
    for source, line in reading.follow(run_dir, rank=rank, role=role, ended=lambda: True, once=True):
        print(f"{source} | {line}")


def tmux(
    run: RunName = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Make the session, print its name, do not show it.")
    ] = False,
    runs_dir: RunsDir = None,
) -> None:
    """Open a tmux session for a run: a shell, and its logs with a pane for each role. Goes back to one that is there."""
    from kit import data_folders
    from kit.runs import registry
    from kit.runs import tmux as sessions

    run_dir = registry.find_one(run, _folders(runs_dir))
    session = sessions.session_of(run_dir)

    def following(role: str | None) -> list[str]:
        # This very kit, whatever the session's shell has in its PATH.
        return [sys.executable, "-m", "kit", "logs", str(run_dir), *([role] if role else []), "--follow"]

    if not sessions.exists(session):
        sessions.make(session, run_dir, cwd=data_folders.project(), following=following)
    if detach:
        print(session)
    elif code := sessions.attach(session):
        raise typer.Exit(code)


def cancel(run: RunOrSweep = None, runs_dir: RunsDir = None) -> None:
    """Cancel the job of a run, or all points of a sweep: ranks are asked to save and end. A second time, Slurm ends all at once."""
    from kit.errors import RunError
    from kit.runs import cancel as ending
    from kit.runs import registry
    from kit.runs import status as of
    from kit.sweeps import find as sweeps

    folders = _folders(runs_dir)
    sweep = sweeps.named(run, folders) if run else None
    if sweep is not None:
        active = sweeps.active(sweep, queue=queue())
        if active:
            ending.cancel(active, env=env_of(active[0].manifest.cluster))
        print(f"{len(active)} points cancelled", file=sys.stderr)
        return
    run_dir = registry.find_one(run, folders)
    (one,) = of.of([run_dir], queue=queue())
    if one.facts.problem:
        hint = f"'scancel {one.job_id}' cancels the job that its events name" if one.job_id else ""
        raise RunError(one.facts.problem, hint=hint)
    if one.job_id is None:
        raise RunError(f"{run_dir.name}: it has no job", hint="it was not submitted")
    if not one.active:
        print(f"job {one.job_id} has ended already: {one.state}", file=sys.stderr)
        return
    ending.cancel([one], env=env_of(one.manifest.cluster))
    print(f"job {one.job_id} cancelled", file=sys.stderr)


def find(name: str | None) -> Status:
    """The status of a run, by any of its names."""
    from kit.runs import registry
    from kit.runs import status as of

    (one,) = of.of([registry.find_one(name, _folders(None))], queue=queue())
    return one


def wait_run(run_dir: Path) -> None:
    """Wait for a run; RunFailed with its own exit code when it is not 0."""
    from kit.runs import status as of

    seen: list[str] = []

    def on_poll(one: Status) -> None:
        if one.state not in seen[-1:]:
            seen.append(one.state)
            print(f"job {one.job_id}: {one.state}{f' ({one.reason})' if one.reason else ''}", file=sys.stderr)

    try:
        _end(of.wait(run_dir, queue=queue(), on_poll=on_poll))
    except KeyboardInterrupt:
        print(
            f"the run goes on; 'kit logs -f {run_dir.name}' follows it, 'kit cancel {run_dir.name}' ends it",
            file=sys.stderr,
        )
        raise


def follow_run(run_dir: Path, *, rank: int | None = None, role: str | None = None, fail: bool = True) -> None:
    """Print the logs until the run has ended; then, with `fail`, RunFailed when its code is not 0."""
    import threading

    from kit.runs import logs as reading
    from kit.runs import status as of

    ended = threading.Event()
    last: list[Status] = []
    problems: list[BaseException] = []

    def watch() -> None:
        try:
            last.append(of.wait(run_dir, queue=queue(), on_poll=lambda _: None))
        except BaseException as error:  # noqa: BLE001 - handed to the thread that prints, which raises it
            problems.append(error)
        finally:
            ended.set()

    threading.Thread(target=watch, daemon=True).start()
    for source, line in reading.follow(run_dir, rank=rank, role=role, ended=ended.is_set):
        print(f"{source} | {line}", flush=True)
    if problems:
        raise problems[0]
    if fail:
        _end(last[0])


def queue() -> Callable[[str], dict[JobId, QueuedJob]]:
    """Asks Slurm once per cluster; a cluster that is not up has no jobs."""
    from kit.runs import queues

    return queues.queue()


def waiting(prepared: Prepared, after: list[str]) -> Prepared:
    """The same job, submitted to wait for others."""
    from kit.workflow.dependencies import with_dependency

    return with_dependency(prepared, after, _folders(None), queue=queue())


def env_of(cluster: str) -> dict[str, str]:
    """The environment of Slurm's commands for a cluster."""
    from kit.runs import queues

    return queues.env_of(cluster)


def _end(one: Status) -> None:
    from kit.errors import RunFailed

    if one.state == "COMPLETED" and not one.exit_code:
        return
    code = one.exit_code if one.exit_code else 1
    raise RunFailed(
        f"run {one.run_dir.name}: {one.state}, exit code {one.exit_code if one.exit_code is not None else 'unknown'}",
        exit_code=code,
        hint=f"kit logs {one.run_dir.name}",
    )


def _listed(one: Status) -> dict[str, object]:
    """What the list of all runs says of one: all that needs no manifest read again."""
    from kit.runs import history

    made = one.facts
    submitted = datetime.fromtimestamp(made.submitted_at, UTC).isoformat(timespec="seconds")
    return {
        "run": made.run_id,
        "job_id": one.job_id,
        "state": one.state,
        "exit_code": one.exit_code,
        "reason": one.reason,
        "cluster": made.cluster,
        "nodes": one.nodes,
        "elapsed": one.elapsed,
        "restarts": one.restarts,
        **history.facts(one.accounted),
        "world_sizes": made.world_sizes,
        "launcher": made.launcher,
        "runtime": made.runtime,
        "image": made.image_name,
        "image_digest": made.image_digest,
        "git": made.git,
        "submitted_at": submitted,
        "run_dir": str(one.run_dir),
    }


def _warn(line: str) -> None:
    print(f"kit: {line}", file=sys.stderr)


def _folders(given: Path | None) -> list[Path]:
    from kit import data_folders
    from kit.runs import registry

    return [given] if given else registry.folders(data_folders.project())
