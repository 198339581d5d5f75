"""kit render: what a submit would write and run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kit.cli import choose_cluster
from kit.cli.job_options import Base, ClusterChoice, Containers, JobFile, Overrides, Point
from kit.cli.print_json import print_json
from kit.cli.submit_messages import show_arguments, show_warnings
from kit.errors import UsageError
from kit.files.atomic_write import write
from kit.files.safe_text import clean

if TYPE_CHECKING:
    from kit.pair.two_clusters import TwoRuns
    from kit.planning.plan import Plan
    from kit.submission.prepare_run import Prepared
    from kit.sweeps.one_job import Part
    from kit.workflow.stages import PreparedStage

    # One job, the stages of a job with [stages], or a training over two clusters.
    Asked = Prepared | tuple[PreparedStage, ...] | TwoRuns


def render(
    job: JobFile = Path("job.toml"),
    cluster: ClusterChoice = None,
    containers: Containers = True,
    set_: Overrides = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the files to this folder instead of printing them.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the files and the argv of the command as JSON.")
    ] = False,
    plain: Annotated[
        bool,
        typer.Option(
            "--plain", help="Print one sbatch file that needs nothing of the kit, for a job with one program."
        ),
    ] = False,
    point: Point = None,
    base: Base = False,
) -> None:
    """Show the files that a submit would write and the command that it would run. Nothing is submitted."""
    overrides = list(set_ or [])
    part = part_of(point, base=base)
    asked = prepare_asked(job, cluster, overrides=overrides, containers=containers, part=part)
    if plain:
        _render_plain(asked, job, output, as_json=as_json)
    else:
        render_asked(asked, output, as_json=as_json)


def part_of(point: int | None, *, base: bool) -> Part | None:
    """The part of a sweep that the options name; None for the whole job."""
    if base and point is not None:
        raise UsageError("--point and --base cannot be used together", hint="--base is the job without the sweep")
    return "base" if base else point


def _render_plain(asked: Asked, job: Path, output: Path | None, *, as_json: bool) -> None:
    from kit.planning.plain_file import plain_script
    from kit.submission.prepare_run import Prepared

    if not isinstance(asked, Prepared):
        raise UsageError("--plain writes the file of one job, and this one has several", hint=f"kit render {job}")
    text, name = plain_script(asked.plan.decisions), f"{asked.plan.job.name}.sbatch"
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        write(output / name, text)
    if as_json and output is not None:
        print_json("render", {"argv": ["sbatch", str(output / name)], "written": [str(output / name)]})
    elif output is not None:
        print(output / name)
    elif as_json:
        print_json("render", {"files": {name: text}, "argv": ["sbatch", name]})
    else:
        print(text, end="")


def prepare_asked(
    job: Path,
    cluster: str | None,
    *,
    overrides: list[str],
    containers: bool,
    debug: bool = False,
    part: Part | None = None,
) -> Asked:
    """Plan what a job file asks for, and print the warnings. debug: not used for a job on two clusters. part: of its sweep."""
    from kit.workflow import stages

    if part is not None:
        asked: Asked | None = _part(job, cluster, part, overrides=overrides, containers=containers, debug=debug)
    else:
        asked = _pair(job, cluster, overrides=overrides, containers=containers)
    if asked is None:
        if cluster is not None and (cluster == choose_cluster.ANY or "," in cluster):
            cluster = choose_cluster.chosen(job, cluster, overrides=overrides, containers=containers)
        asked = stages.prepare_job(job, cluster=cluster, overrides=overrides, containers=containers, debug=debug)
    show_arguments(jobs_of(asked))
    show_warnings(jobs_of(asked))
    return asked


def _part(
    job: Path, cluster: str | None, part: Part, *, overrides: list[str], containers: bool, debug: bool
) -> Prepared:
    """One point of a sweep, or the job without it."""
    from kit import config
    from kit.sweeps import one_job

    if cluster == choose_cluster.ANY or "," in (cluster or ""):
        raise UsageError("--point and --base need the name of one cluster", hint="--cluster local")
    return one_job.prepare_point(
        config.job_path(job), part, cluster=cluster, overrides=overrides, containers=containers, debug=debug
    )


def _pair(job: Path, cluster: str | None, *, overrides: list[str], containers: bool) -> TwoRuns | None:
    """Both runs of a training over the two clusters that are named; None for any other job, or for one cluster."""
    names = [name.strip() for name in (cluster or "").split(",")]
    if len(names) < 2:
        return None
    from kit.pair import two_clusters

    if not two_clusters.asked_for(job, names, overrides):
        return None
    return two_clusters.prepare_pair(job, names, overrides=overrides, containers=containers)


def jobs_of(asked: Asked) -> list[Prepared]:
    """The jobs that a job file asks for."""
    from kit.submission.prepare_run import Prepared

    if isinstance(asked, Prepared):
        return [asked]
    return [stage.prepared for stage in asked] if isinstance(asked, tuple) else [*asked.runs]


def render_asked(asked: Asked, output: Path | None, *, as_json: bool) -> None:
    """Print what a submit would write and run, job by job; or write the files into a folder, one for each job."""
    from kit.submission.prepare_run import Prepared

    if isinstance(asked, Prepared):
        facts: Any = _render_plan(asked.plan, output, as_json=as_json)
    else:
        facts = {}
        for name, title, plan in _titled(asked):
            if not as_json:
                print(f"# {title}")
            facts[name] = _render_plan(plan, output / name if output else None, as_json=as_json)
    if as_json:
        print_json("render", facts, named=not isinstance(asked, Prepared))


def _titled(asked: tuple[PreparedStage, ...] | TwoRuns) -> Iterator[tuple[str, str, Plan]]:
    """The name, the title and the plan of each of several jobs."""
    if isinstance(asked, tuple):
        for stage in asked:
            after = "".join(f", after {one.name}:{one.kind}" for one in stage.after)
            yield stage.name, f"stage {stage.name}{after}", stage.prepared.plan
    else:
        for one in asked.runs:
            yield one.plan.cluster, f"cluster {one.plan.cluster}", one.plan


def render_plan(made: Plan, *, as_json: bool) -> None:
    """Print the files and the command of a submit of this plan."""
    facts = _render_plan(made, None, as_json=as_json)
    if as_json:
        print_json("render", facts)


def _render_plan(plan: Plan, output: Path | None, *, as_json: bool) -> dict[str, Any]:
    """Print or write one plan; return its data for --json."""
    from kit.render import without_body
    from kit.submission import folder

    written = folder.write_files(plan, output) if output is not None else []
    if as_json:
        facts: dict[str, Any] = {"run": plan.run_id, "run_dir": str(plan.run_dir), "argv": list(plan.argv)}
        if output is not None:
            return {**facts, "written": [str(path) for path in written]}
        return {**facts, "files": {file.name: file.text for file in plan.files}}
    if output is not None:
        print(*written, sep="\n")
        return {}
    texts = {file.name: file.text for file in plan.files}
    own = [f"{role.folder}/{name}".lstrip("/") for role in plan.roles for name in ("worker.sh", "program.sh")]
    options = [name for name in texts if name.startswith("configs/")]
    for name in dict.fromkeys(("layout.txt", "batch.sh", "script", *options, *own)):
        if name in texts:
            head, rest = without_body(texts[name])
            print(f"# ==> {name} <==")
            if rest:
                print(head.rstrip())
                print(
                    f"# … {rest} lines that are the same in every run; `kit render --output FOLDER` writes all files whole.\n"
                )
            else:
                print(head)
    print(f"# {clean(' '.join(plan.argv))}")
    return {}
