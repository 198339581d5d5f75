"""kit runs, kit status, kit cancel, kit resume."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kit.cli import completion_candidates
from kit.cli.json_options import Json, ManifestJson
from kit.safe_text import clean

if TYPE_CHECKING:
    from kit.runs.status import Status

RunName = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN]",
        help="Run folder, run id, the first characters of a run id, or Slurm job id; default: the newest run.",
        autocompletion=completion_candidates.runs,
    ),
]
ThisRun = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Run folder, run id, the first characters of a run id, or Slurm job id.",
        autocompletion=completion_candidates.runs,
    ),
]
RunsDir = Annotated[
    Path | None,
    typer.Option(
        "--runs", help="The folder in which to look for runs; default: the folders of all clusters.", show_default=False
    ),
]


def runs(runs_dir: RunsDir = None, as_json: Json = False) -> None:
    """List the runs of this project. The queue of each cluster is read once for all its runs."""
    from kit.cli.print_table import Column, show
    from kit.cli.wait_and_follow import queue_for_display
    from kit.runs import find_runs, from_accounting, which_slurm
    from kit.runs import status as of

    asked = queue_for_display()
    found = of.of_facts(find_runs.find_all(folders(runs_dir)), queue=asked)
    if _found_again(found):
        found = of.of_facts(find_runs.find_all(folders(runs_dir)), queue=asked)
    found = from_accounting.add(found, ask=which_slurm.history(say=warn))
    if as_json:
        print(json.dumps([_listed(s) for s in found], indent=2))
        return
    columns = (
        Column("run"), Column("job", 1), Column("cluster", 5), Column("state"), Column("code", 2), Column("world", 4),
        Column("submitted", 3),
    )  # fmt: skip
    show(columns, _rows(found))
    for one in found:
        if one.facts.problem:
            print(f"{one.run_dir.name}: {clean(one.facts.problem)}", file=sys.stderr)


def _found_again(found: Iterable[Status]) -> bool:
    """Whether Slurm has jobs for points without one, because `kit sweep` was killed before it had recorded them."""
    from kit.runs.unmade_points import POINTS

    points = [one.run_dir for one in found if one.job_id is None and one.run_dir.parent.name == POINTS]
    if not points:
        return False
    from kit.sweeps import lost_arrays

    return lost_arrays.noted(points)


def _rows(found: Sequence[Status]) -> list[tuple[object, ...]]:
    """The table's rows: of a training over two clusters, the second half stands below the first and is marked."""
    by_id = {one.facts.run_id: one for one in found}
    rows = []
    shown: set[str] = set()
    for one in found:
        if one.facts.run_id in shown:
            continue
        rows.append(_row(one))
        other = by_id.get(one.facts.partner or "")
        if other is not None and other.facts.partner == one.facts.run_id:
            name, *more = _row(other)
            rows.append((f"└ {name}", *more))
            shown.add(other.facts.run_id)
    return rows


def _row(one: Status) -> tuple[object, ...]:
    from kit.spec.world_size_text import world_size

    made = one.facts
    world = world_size(made.world_sizes)
    submitted = datetime.fromtimestamp(made.submitted_at, UTC)
    return made.run_id, one.job_id, made.cluster, one.state, one.exit_code, world, f"{submitted:%Y-%m-%d %H:%M}"


def status(run: RunName = None, runs_dir: RunsDir = None, as_json: Json = False) -> None:
    """Show one run: state, nodes, exit code, image, run folder, last reported step, and last quorum of replica groups."""
    from kit.cli.wait_and_follow import queue_for_display
    from kit.cli.why import first_line
    from kit.runs import from_accounting, metrics, resumed_from, run_facts, which_slurm
    from kit.runs import status as of
    from kit.spec.world_size_text import sizes_text

    run_dir, asked = find_dir(run, runs_dir), queue_for_display()
    found = of.of([run_dir], queue=asked)
    if _found_again(found):
        found = of.of([run_dir], queue=asked)
    (one,) = from_accounting.add(found, ask=which_slurm.history(say=warn), every=True)
    facts = {**_listed(one), "why": first_line(one)}
    quorum, latest = metrics.quorum(one.run_dir), metrics.latest(one.run_dir)
    events = run_facts.events(one.run_dir)
    resumed = resumed_from.last(events)
    unwatched = {str(event["node"]): str(event["owner"]) for event in events if event["event"] == "unwatched"}
    if as_json:
        reported = {
            "training": dataclasses.asdict(latest) if latest else None,
            "quorum": dataclasses.asdict(quorum) if quorum else None,
            "continued_at": resumed,
            "unwatched": unwatched,
        }
        print(json.dumps({**facts, **reported, "partner": _partner_facts(one)}, indent=2))
        return
    facts["world_sizes"] = sizes_text(one.facts.world_sizes)
    facts["training"] = f"{latest}, {latest.time}" if latest else None
    facts["continued at"] = resumed
    facts["not watched"] = ", ".join(
        f"{node}: {owner} has made the folder of its reports" for node, owner in unwatched.items()
    )
    facts["arguments"] = run_facts.arguments(one.run_dir)
    facts["quorum"] = f"{quorum}, {quorum.time}" if quorum else None
    facts["partner"] = _partner(one)
    width = max(map(len, facts))
    for name, value in facts.items():
        if value not in (None, ""):
            print(f"{name:<{width}}  {clean(str(value))}")


def _partner_facts(one: Status) -> dict[str, object] | None:
    """The other half of a training over two clusters: its run, cluster and state, and the relay; None for any other run."""
    if (name := one.facts.partner) is None:
        return None
    from kit.cli.wait_and_follow import queue
    from kit.runs import pair_relay
    from kit.runs import status as of

    folders(None, name)
    run_dir = pair_relay.folder_of(name)
    if run_dir is None:
        return {"run": name, "cluster": None, "state": "not found", "job_id": None, "relay": None}
    (other,) = of.of([run_dir], queue=queue())
    relay = pair_relay.seen_from(one.run_dir, run_dir) if one.active or other.active else None
    return {
        "run": name,
        "cluster": other.facts.cluster,
        "state": other.state,
        "job_id": other.job_id,
        "relay": relay,
    }


def _partner(one: Status) -> str | None:
    found = _partner_facts(one)
    if found is None:
        return None
    from kit.runs import pair_relay

    if found["cluster"] is None:
        return f"{found['run']}: not found, so it was probably not submitted; 'kit cancel {one.run_dir.name}' ends this half"
    relay = f", relay {found['relay']}" if found["relay"] else ""
    active = one.run_dir.name if one.active else found["run"]
    mend = f"; 'kit resume {active}' starts it again" if found["relay"] in pair_relay.DOWN else ""
    return f"{found['run']} on {found['cluster']}: {found['state']}{relay}{mend}"


def cancel(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN|SWEEP]...",
            help="Run folders, run ids, the first characters of run ids, Slurm job ids, or sweep ids; default: the newest run.",
            autocompletion=completion_candidates.runs_and_sweeps,
        ),
    ] = None,
    runs_dir: RunsDir = None,
    as_json: Json = False,
) -> None:
    """Cancel runs, or all points of sweeps. The ranks are asked to save and end. A second cancel ends them immediately."""
    from kit.cli.wait_and_follow import queue
    from kit.sweeps import cancel_by_name as cancelling

    done = cancelling.cancel(list(names or []), folders(runs_dir, *(names or [])), queue=queue())
    if as_json:
        print(json.dumps([dataclasses.asdict(one) for one in done], indent=2))
    for one in done:
        print(one, file=sys.stderr)


def resume(
    run: RunName = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the run has ended, then exit with the run's exit code.")
    ] = False,
    as_json: ManifestJson = False,
) -> None:
    """Submit an ended run again, in the same run folder. The program continues from the newest checkpoint.

    For a training over two clusters whose jobs have not ended, start the relay again if it is down.
    """
    from kit.cli.wait_and_follow import queue, wait_run
    from kit.runs import which_slurm
    from kit.runs.resume import restart_relay
    from kit.runs.resume import resume as submit_again

    one = find(run)
    if first := restart_relay(one, queue=queue(), env=which_slurm.env_of):
        made = one.manifest
        print(f"the relay of {first} runs again", file=sys.stderr)
    else:
        made = submit_again(one, env=which_slurm.env_of(one.manifest.cluster))
        print(f"job {made.job_id}: {made.run_id} continues", file=sys.stderr)
    print(made.model_dump_json(indent=2) if as_json else one.run_dir)
    if wait:
        wait_run(one.run_dir)


def find(name: str | None) -> Status:
    """The status of a run, by any of its names."""
    from kit.cli.wait_and_follow import queue
    from kit.runs import status as of

    (one,) = of.of([find_dir(name, None)], queue=queue())
    return one


def _listed(one: Status) -> dict[str, object]:
    """The data of one run in the list of all runs. It needs no manifest."""
    from kit.runs import from_accounting

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
        **from_accounting.facts(one.accounted),
        "world_sizes": made.world_sizes,
        "launcher": made.launcher,
        "runtime": made.runtime,
        "image": made.image_name,
        "image_digest": made.image_digest,
        "git": made.git,
        "workspace": made.workspace,
        "rerun_of": made.rerun_of,
        "partner": made.partner,
        "submitted_at": submitted,
        "run_dir": str(one.run_dir),
    }


def warn(line: str) -> None:
    """Print a message of accounting, separate from the results."""
    print(f"kit: {line}", file=sys.stderr)


def folders(given: Path | None, *names: str | None) -> list[Path]:
    """The folders in which runs are searched: `--runs`, or those of all clusters. Clusters over ssh are updated in parallel.

    names: of the wanted runs; a cluster that cannot have any of them is not asked.
    """
    from kit import data_folders
    from kit.runs import find_runs, remote_clusters

    if given:
        return [given]
    project = data_folders.project()
    for problem in remote_clusters.refresh(project, names or (None,)).values():
        warn(f"{problem}\n  what follows is as it was when it last answered")
    return find_runs.folders(project)


def find_dir(name: str | None, runs_dir: Path | None) -> Path:
    """The folder of a run, by any of its names; for a run on another machine, its updated mirror."""
    from kit.runs import find_runs, remote_clusters

    run_dir = find_runs.find_one(name, folders(runs_dir, name))
    remote_clusters.fetch(run_dir)
    return run_dir


def fetched(runs_dir: Path | None, names: Sequence[str | None]) -> list[Path]:
    """The same as `folders`, with updated files of these runs and of the points of these sweeps."""
    from kit.ledger import find as named
    from kit.runs import find_runs, remote_clusters

    found = folders(runs_dir, *names)
    for name in names:
        points = named.sweep_points(name, found)
        if points:
            remote_clusters.fetch_sweep(points[0].parent.parent)
        else:
            remote_clusters.fetch(find_runs.find_one(name, found))
    return found
