"""kit render, kit submit."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kit.planning.plan import Plan
    from kit.runs.submit import Prepared

# More roles than these are not named one by one after a submit.
_ROLES_NAMED = 8

JobFile = Annotated[
    Path, typer.Argument(metavar="[JOB]", help="Job file, or the folder that holds job.toml.", show_default="job.toml")
]
ClusterName = Annotated[
    str | None, typer.Option("--cluster", "-c", help="A name of clusters/. [default: local]", show_default=False)
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one key of the job, such as resources.nodes=4."),
]
After = Annotated[
    list[str] | None,
    typer.Option("--after", metavar="RUN[:ok|any|notok]", help="Start when another run, chain or sweep has ended so."),
]
Containers = Annotated[
    bool, typer.Option("--container/--no-container", help="Run in the job's image, or on the nodes as they are.")
]


def render(
    job: JobFile = Path("job.toml"),
    cluster: ClusterName = None,
    containers: Containers = True,
    set_: Overrides = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the files to this folder instead of printing them.")
    ] = None,
) -> None:
    """Show what a submit would write and run. Nothing is submitted."""
    from kit.cli import stages

    if stages.staged(job):
        for stage in stages.prepared(job, cluster, containers, set_):
            print(f"# stage {stage.name}" + "".join(f", after {one.name}:{one.kind}" for one in stage.after))
            _render(stage.prepared.plan, output / stage.name if output else None)
        return
    _render(prepared(job, cluster, containers, set_).plan, output)


def submit(
    job: JobFile = Path("job.toml"),
    cluster: ClusterName = None,
    containers: Containers = True,
    set_: Overrides = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end; exit with the run's own code.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show the logs as they come; exit with the run's own code.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="A short run on 2 nodes at most: scripts traced, NCCL and torch talk.")
    ] = False,
    after: After = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Same as 'kit render'.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="With --dry-run: write the files to this folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    """Write the run folder and submit it."""
    from kit.cli import runs, stages
    from kit.errors import UsageError
    from kit.runs.submit import submit as submit_run

    overrides = [*(set_ or []), *(["debug=true"] if is_true(os.environ.get("DEBUG", "")) else [])]
    if output and not dry_run:
        raise UsageError("--output goes with --dry-run", hint="the run folder is where clusters/<name>.toml says")
    if dry_run:
        render(job, cluster, containers, overrides, output)
        return
    if stages.staged(job):
        if debug or follow or after:
            raise UsageError("--debug, --follow and --after go with a single job", hint="--wait waits for all stages")
        stages.submit(stages.prepared(job, cluster, containers, overrides), wait=wait, as_json=as_json)
        return
    ready = prepared(job, cluster, containers, overrides, debug=debug)
    if after:
        ready = runs.waiting(ready, after)
    made = submit_run(ready)
    run_dir = ready.plan.run_dir
    from kit.planning.placement import world_text

    where = f"runtime {made.runtime}" + (f", image {made.image_digest}" if made.image_digest else "")
    print(
        f"job {made.job_id}: {made.nodes} nodes on {made.cluster}, {world_text(made.world_sizes)}; {where}",
        file=sys.stderr,
    )
    print(made.model_dump_json(indent=2) if as_json else run_dir)
    if follow:
        runs.follow_run(run_dir)
        return
    print(*following(ready.plan), sep="\n", file=sys.stderr)
    if wait:
        runs.wait_run(run_dir)


def resume(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="A run that has ended; default: the newest.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end; exit with the run's own code.")] = False,
) -> None:
    """Submit a run that has ended again, in its own folder: its program goes on from the newest checkpoint."""
    from kit.cli import runs
    from kit.runs.resume import resume as submit_again

    one = runs.find(run)
    made = submit_again(one, env=runs.env_of(one.manifest.cluster))
    print(f"job {made.job_id}: {made.run_id} goes on", file=sys.stderr)
    print(one.run_dir)
    if wait:
        runs.wait_run(one.run_dir)


def shell(
    job: JobFile = Path("job.toml"),
    cluster: ClusterName = None,
    containers: Containers = True,
    set_: Overrides = None,
    attach: Annotated[
        str | None,
        typer.Option("--attach", metavar="RUN", help="Go to a node of a running job instead of a new allocation."),
    ] = None,
    node: Annotated[str | None, typer.Option("--node", help="With --attach: which node. [default: the first]")] = None,
) -> None:
    """Open a shell in the job's container, with its mounts and its environment."""
    from kit.cli import runs
    from kit.runs import interactive

    if attach is not None:
        one = runs.find(attach)
        raise typer.Exit(interactive.attach(one, node=node, env=runs.env_of(one.manifest.cluster)))
    raise typer.Exit(interactive.allocate(prepared(job, cluster, containers, set_)))


def _render(made: Plan, output: Path | None) -> None:
    from kit.runs import folder

    if output is not None:
        for path in folder.write_files(made, output):
            print(path)
        return
    texts = {file.name: file.text for file in made.files}
    own = [f"{role.folder}/{name}".lstrip("/") for role in made.roles for name in ("worker.sh", "program.sh")]
    options = [name for name in texts if name.startswith("configs/")]
    for name in dict.fromkeys(("layout.txt", "batch.sh", *options, *own)):
        if name in texts:
            print(f"# ==> {name} <==")
            print(texts[name])
    print(f"# {' '.join(made.argv)}")


def following(made: Plan) -> list[str]:
    """The command lines that show a run's logs as they come: all of them, and those of each role."""
    whole = f"kit logs {made.run_id} -f"
    roles = [f"kit logs {made.run_id} {placed.name} -f" for placed in made.roles if placed.folder]
    return [whole, *roles] if len(roles) <= _ROLES_NAMED else [whole]


def is_true(text: str) -> bool:
    """on, y, yes, t, true, 1 in any case, as the scripts read DEBUG; "not" and "21" are not."""
    return re.fullmatch(r"1|on|y|yes|t|true", text.strip(), re.IGNORECASE) is not None


def prepared(
    job: Path, cluster: str | None, containers: bool, overrides: list[str] | None, *, debug: bool = False
) -> Prepared:
    """The plan of what stands on the command line; a folder stands for its job.toml."""
    from kit.runs.submit import prepare

    job_file = job / "job.toml" if job.is_dir() else job
    return prepare(job_file, cluster=cluster, overrides=list(overrides or []), containers=containers, debug=debug)
