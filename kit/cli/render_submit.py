"""kit render, kit submit."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from kit.cli import choose_cluster, completion_candidates
from kit.cli.typer_later import typer
from kit.safe_text import clean

if TYPE_CHECKING:
    from kit.cli.kept_render import Drawn
    from kit.errors import Fault
    from kit.forecast.answers import WhenAnswer
    from kit.forecast.submit_forecast import Outlook
    from kit.planning.plan import Plan
    from kit.runs.manifest import Manifest
    from kit.runs.prepare_run import Prepared
    from kit.runs.two_clusters import TwoRuns
    from kit.slurm.client import ExpectedStart
    from kit.sweeps.shared_plans import Kind
    from kit.workflow.stages import PreparedStage

# With more roles than this, a submit does not list each of them.
_ROLES_NAMED = 8

JobFile = Annotated[
    Path, typer.Argument(metavar="[JOB]", help="Job file, or the folder that holds job.toml.", show_default="job.toml")
]
ClusterName = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        "-c",
        help="A name of clusters/.",
        show_default="KIT_CLUSTER, the user's, the only one of the project; or local",
        autocompletion=completion_candidates.clusters,
    ),
]
ClusterChoice = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        "-c",
        help=(
            "A name of clusters/. 'any', or several names with commas: the one where the job starts first; "
            "with diloco.across, the two that train together."
        ),
        show_default="KIT_CLUSTER, the user's, the only one of the project; or local",
        autocompletion=completion_candidates.clusters,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override one key of the job, such as resources.nodes=4.",
        autocompletion=completion_candidates.job_keys,
    ),
]
After = Annotated[
    list[str] | None,
    typer.Option(
        "--after",
        metavar="RUN[:ok|any|notok]",
        help="Start after another run, chain or sweep ends with the given status.",
        autocompletion=completion_candidates.runs_and_sweeps,
    ),
]
Containers = Annotated[
    bool, typer.Option("--container/--no-container", help="Run in the job's image, or on the nodes as they are.")
]


def render(
    job: JobFile = Path("job.toml"),
    cluster: ClusterChoice = None,
    containers: Containers = True,
    set_: Overrides = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the files to this folder instead of printing them.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print files and argv as JSON.")] = False,
) -> None:
    """Show what a submit would write and run. Nothing is submitted."""
    from kit.cli import kept_render

    overrides = list(set_ or [])

    def made() -> Drawn | None:
        return _planned_and_printed(job, cluster, overrides, output, containers=containers, as_json=as_json)

    if output is not None:
        made()
        return
    kept_render.answer([str(job), cluster, containers, overrides, as_json], made)


def _planned_and_printed(
    job: Path, cluster: str | None, overrides: list[str], output: Path | None, *, containers: bool, as_json: bool
) -> Drawn | None:
    """Returns what is random in the text; None for several jobs."""
    from kit.cli.kept_render import Drawn
    from kit.workflow import stages

    if pair := _pair(job, cluster, overrides=overrides, containers=containers):
        show_warnings(pair.runs)
        _render_pair(pair, output, as_json=as_json)
        return None
    cluster = choose_cluster.chosen(job, cluster, overrides=overrides, containers=containers)
    found = stages.prepare_job(job, cluster=cluster, overrides=overrides, containers=containers)
    show_warnings(_jobs(found))
    _render(found, output, as_json=as_json)
    if isinstance(found, tuple):
        return None
    return Drawn(found.plan.job.name, found.plan.run_id, found.site.seed)


def submit(
    job: JobFile = Path("job.toml"),
    cluster: ClusterChoice = None,
    containers: Containers = True,
    set_: Overrides = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end; exit with the run's own code.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show the logs as they come; exit with the run's own code.")
    ] = False,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug", help="A short run on 2 nodes at most, with traced scripts and verbose logs of NCCL and torch."
        ),
    ] = False,
    after: After = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Same as 'kit render'.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="With --dry-run: write the files to this folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    """Write the run folder and submit it."""
    from kit.cli.wait_and_follow import follow_run, wait_run
    from kit.errors import UsageError
    from kit.workflow import stages

    if output and not dry_run:
        raise UsageError(
            "--output works only together with --dry-run",
            hint="paths.runs in clusters/<name>.toml sets the folder",
        )
    if as_json and follow:
        raise UsageError(
            "--json and --follow both write to stdout", hint="'kit submit --json --wait' waits for the end"
        )
    overrides = [*(set_ or []), *(["debug=true"] if is_true(os.environ.get("DEBUG", "")) else [])]
    if pair := _pair(job, cluster, overrides=overrides, containers=containers):
        show_warnings(pair.runs)
        if dry_run:
            _render_pair(pair, output, as_json=as_json)
            return
        if debug or follow or after:
            raise UsageError(
                "--debug, --follow and --after do not work for a job on two clusters", hint="--wait waits for both"
            )
        _show_advice(pair.runs)
        folders = _submit_pair(pair, as_json=as_json)
        for folder in folders if wait else ():
            wait_run(folder)
        return
    cluster = choose_cluster.chosen(job, cluster, overrides=overrides, containers=containers)
    ready = stages.prepare_job(job, cluster=cluster, overrides=overrides, containers=containers, debug=debug)
    show_warnings(_jobs(ready))
    if dry_run:
        _render(ready, output, as_json=as_json)
        return
    _show_advice(_jobs(ready))
    outlooks = _outlooks(ready)
    if isinstance(ready, tuple):
        if debug or follow or after:
            raise UsageError(
                "--debug, --follow and --after do not work for a job with [stages]", hint="--wait waits for all"
            )
        folders = _submit_stages(ready, as_json=as_json)
    else:
        folders = [submit_run(ready, after or [], as_json=as_json, say_how=not follow, outlook=outlooks[0])]
    for folder in folders if wait and not follow else ():
        wait_run(folder)
    if follow:
        follow_run(folders[0])


def _pair(job: Path, cluster: str | None, *, overrides: list[str], containers: bool) -> TwoRuns | None:
    """Both runs of a training over the two clusters that are named; None for any other job, or for one cluster."""
    names = [name.strip() for name in (cluster or "").split(",")]
    if len(names) < 2:
        return None
    from kit.runs import two_clusters

    if not two_clusters.asked_for(job, names, overrides):
        return None
    return two_clusters.prepare(job, names, overrides=overrides, containers=containers)


def _submit_pair(pair: TwoRuns, *, as_json: bool) -> list[Path]:
    """Submit both runs and print their folders, or their manifests."""
    from kit.runs import two_clusters

    made: dict[str, Manifest] = {}

    def say(one: Prepared, manifest: Manifest) -> None:
        made[one.plan.cluster] = manifest
        print(announced(manifest), file=sys.stderr)

    two_clusters.submit_pair(pair, say=say)
    if as_json:
        print(json.dumps({name: one.model_dump(mode="json") for name, one in made.items()}, indent=2))
    else:
        print(*(one.folder for one in pair.runs), sep="\n")
    for one in pair.runs:
        print(f"kit logs {one.plan.run_id} -f", file=sys.stderr)
    return [one.folder for one in pair.runs]


def _render_pair(pair: TwoRuns, output: Path | None, *, as_json: bool) -> None:
    """Print or write what a submit of both runs would write."""
    facts: dict[str, Any] = {}
    for one in pair.runs:
        name = one.plan.cluster
        if not as_json:
            print(f"# cluster {name}")
        facts[name] = _render_plan(one.plan, output / name if output else None, as_json=as_json)
    if as_json:
        print(json.dumps(facts, indent=2))


def _jobs(found: Prepared | tuple[PreparedStage, ...]) -> list[Prepared]:
    return [stage.prepared for stage in found] if isinstance(found, tuple) else [found]


def show_warnings(jobs: Iterable[Prepared | Kind]) -> None:
    """Print warnings about jobs that will run, but perhaps not as intended; each once, for any number of jobs."""
    _warn(one for job in jobs for one in job.warnings)


def _show_advice(jobs: Iterable[Prepared]) -> None:
    """Print what Slurm's topology makes slow. Slurm is asked at most once for each job."""
    from kit.slurm import parallel_group_fit

    _warn(one for job in jobs for one in parallel_group_fit.warnings(job.plan, env=job.env))


def _outlooks(found: Prepared | tuple[PreparedStage, ...]) -> list[Outlook]:
    """The forecast of each job before its submit. ConfigError for a job that cannot fit into its nodes."""
    from kit.forecast import submit_forecast

    seen = [submit_forecast.look(job) for job in _jobs(found)]
    for one in seen:
        submit_forecast.refuse(one)
        _warn(submit_forecast.warnings(one))
    return seen


def _warn(found: Iterable[Fault]) -> None:
    for one in dict.fromkeys(found):
        print(f"kit: warning: {one}", file=sys.stderr)


def submit_run(
    ready: Prepared, after: list[str], *, as_json: bool, say_how: bool, outlook: Outlook | None = None
) -> Path:
    """Submit one job and print its folder, or its manifest. With an outlook, print the forecast of its start and end."""
    from kit.cli.runs import folders
    from kit.cli.wait_and_follow import queue
    from kit.forecast import answers
    from kit.runs.submit import submit as send
    from kit.workflow.dependencies import with_dependency

    if after:
        ready = with_dependency(ready, after, folders(None), queue=queue())
    starts: list[WhenAnswer | None] = []

    def expected(slurms: ExpectedStart | None) -> None:
        # A job that waits for other runs starts after them, and their end is not known.
        starts.append(answers.at_submit(ready, slurms) if outlook is not None and not after else None)

    try:
        made = send(ready, expected=expected)
    except KeyboardInterrupt:
        print(_after_an_interrupt(ready), file=sys.stderr)
        raise
    print(announced(made), file=sys.stderr)
    if outlook is not None:
        _show_outlook(outlook, starts[0] if starts else None)
    print(made.model_dump_json(indent=2) if as_json else ready.folder)
    if say_how:
        print(*following(ready.plan), sep="\n", file=sys.stderr)
    return ready.folder


def _show_outlook(found: Outlook, start: WhenAnswer | None) -> None:
    from kit.forecast import answers, submit_forecast

    begins = start.start.expected if start and start.start else None
    lines = [answers.line(start)] if start else []
    for line in (*lines, *submit_forecast.sentences(found, start=begins)):
        print(f"forecast: {clean(line)}", file=sys.stderr)


def _submit_stages(found: tuple[PreparedStage, ...], *, as_json: bool) -> list[Path]:
    """Submit all stages and print their run folders, or their manifests."""
    from kit.workflow import stages

    made: dict[str, Manifest] = {}

    def say(name: str, one: Manifest) -> None:
        made[name] = one
        print(f"stage {name}: job {one.job_id}", file=sys.stderr)

    folders = stages.submit_all(found, say=say)
    if as_json:
        print(json.dumps({name: one.model_dump(mode="json") for name, one in made.items()}, indent=2))
    else:
        print(*folders, sep="\n")
    return folders


def _after_an_interrupt(ready: Prepared) -> str:
    """Whether a submit that Ctrl-C interrupted was complete. A refused or interrupted submit leaves no folder."""
    run_dir = ready.plan.run_dir
    if ready.remote:
        return f"'kit status {ready.plan.run_id}' tells whether the job was submitted"
    if not run_dir.is_dir():
        return "nothing was submitted"
    return f"the job was submitted: 'kit logs -f {run_dir.name}' shows it, 'kit cancel {run_dir.name}' ends it"


def announced(made: Manifest) -> str:
    """The line that a submit prints about its job."""
    from kit.spec.world_size_text import world_text

    where = f"runtime {made.runtime}" + (f", image {made.image_digest}" if made.image_digest else "")
    nodes = "1 node" if made.nodes == 1 else f"{made.nodes} nodes"
    return f"job {made.job_id}: {nodes} on {made.cluster}, {world_text(made.world_sizes)}; {where}"


def _render(found: Prepared | tuple[PreparedStage, ...], output: Path | None, *, as_json: bool) -> None:
    """Print or write the files of a submit; for a job with stages, stage by stage."""
    if not isinstance(found, tuple):
        facts: Any = _render_plan(found.plan, output, as_json=as_json)
    else:
        facts = {}
        for stage in found:
            if not as_json:
                print(f"# stage {stage.name}" + "".join(f", after {one.name}:{one.kind}" for one in stage.after))
            folder = output / stage.name if output else None
            facts[stage.name] = _render_plan(stage.prepared.plan, folder, as_json=as_json)
    if as_json:
        print(json.dumps(facts, indent=2))


def render_plan(made: Plan, *, as_json: bool) -> None:
    """Print the files and the command of a submit of this plan."""
    facts = _render_plan(made, None, as_json=as_json)
    if as_json:
        print(json.dumps(facts, indent=2))


def _render_plan(made: Plan, output: Path | None, *, as_json: bool) -> dict[str, Any]:
    """Print or write one plan; return its data for --json."""
    from kit.runs import folder

    written = folder.write_files(made, output) if output is not None else []
    if as_json:
        facts: dict[str, Any] = {"run": made.run_id, "run_dir": str(made.run_dir), "argv": list(made.argv)}
        if output is not None:
            return {**facts, "written": [str(path) for path in written]}
        return {**facts, "files": {file.name: file.text for file in made.files}}
    if output is not None:
        print(*written, sep="\n")
        return {}
    texts = {file.name: file.text for file in made.files}
    own = [f"{role.folder}/{name}".lstrip("/") for role in made.roles for name in ("worker.sh", "program.sh")]
    options = [name for name in texts if name.startswith("configs/")]
    for name in dict.fromkeys(("layout.txt", "batch.sh", *options, *own)):
        if name in texts:
            print(f"# ==> {name} <==")
            print(texts[name])
    print(f"# {' '.join(made.argv)}")
    return {}


def following(made: Plan) -> list[str]:
    """The command lines that follow a run's logs: all of them, and those of each role."""
    whole = f"kit logs {made.run_id} -f"
    roles = [f"kit logs {made.run_id} {placed.name} -f" for placed in made.roles if placed.folder]
    return [whole, *roles] if len(roles) <= _ROLES_NAMED else [whole]


def is_true(text: str) -> bool:
    """Whether a text means true: on, y, yes, t, true, 1 in any case, as the scripts read DEBUG. "not" and "21" do not."""
    return re.fullmatch(r"1|on|y|yes|t|true", text.strip(), re.IGNORECASE) is not None
