"""kit run: a program on the cluster before there is a job file."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kit.cli import completion_candidates
from kit.cli.job_options import ClusterName, Containers, Overrides, Yes

if TYPE_CHECKING:
    from kit.config import Table
    from kit.submission.prepare_run import Prepared
    from kit.workflow.what_is_missing import JobPlace

Program = Annotated[Path, typer.Argument(metavar="SCRIPT", help="Your program.", show_default=False)]
Words = Annotated[
    list[str] | None, typer.Argument(metavar="[-- ARGS]", help="Words after -- are the program's.", show_default=False)
]
Nodes = Annotated[int | None, typer.Option("--nodes", min=1, help="Number of nodes.", show_default="as kit init")]
Gpus = Annotated[
    int | None, typer.Option("--gpus", min=0, help="Number of GPUs on each node.", show_default="as kit init")
]
Limit = Annotated[
    str | None, typer.Option("--time", help="Time limit, such as 02:00:00.", show_default="an hour, or the cluster's")
]
Launcher = Annotated[
    str,
    typer.Option(
        "--launcher",
        help="The launcher, which starts the ranks: a name in launchers/.",
        autocompletion=completion_candidates.launchers,
    ),
]
Image = Annotated[
    str | None,
    typer.Option(
        "--image",
        help="The image: a name in containers/.",
        show_default="as kit init",
        autocompletion=completion_candidates.images,
    ),
]
Save = Annotated[
    Path | None, typer.Option("--save", metavar="FILE", help="Keep what was used in this job file, such as job.toml.")
]


def run(
    script: Program,
    args: Words = None,
    *,
    nodes: Nodes = None,
    gpus: Gpus = None,
    time: Limit = None,
    launcher: Launcher = "ddp",
    image: Image = None,
    cluster: ClusterName = None,
    containers: Containers = True,
    set_: Overrides = None,
    yes: Yes = False,
    save: Save = None,
) -> None:
    """Run a program without a job file, as 'kit submit --follow' would with the job of 'kit init', and follow it to its end."""
    from kit import config, data_folders
    from kit.cli import offers
    from kit.cli.submit import submit_asked
    from kit.cli.wait_and_follow import follow_run
    from kit.record.manifest import BY_KIT_RUN
    from kit.workflow import first_job
    from kit.workflow.what_is_missing import JobPlace

    folder, script = first_job.folder_of(script)
    target = JobPlace(cluster, data_folders.project(folder))
    own = first_job.FirstJob(
        folder=folder,
        script=script,
        launcher=data_folders.find(
            "launchers", launcher, project_dir=target.project, asked_by="--launcher", key="launcher"
        ),
        image=image or first_job.image_for(folder, script, target.project),
        cluster=target.entry(),
        args=tuple(args or ()),
        containers=containers,
    )
    resources = {"nodes": nodes, "gpus_per_node": gpus, "time": time}
    job = first_job.table(own, {name: value for name, value in resources.items() if value is not None})
    overrides = set_ or []
    if not yes and not offers.on_terminal():
        _require_all(config.merge(job, config.parse_overrides(overrides)), target, containers=containers)
    if containers and image is None:
        first_job.write_image(own, lambda line: print(line, file=sys.stderr))
    file = folder / BY_KIT_RUN
    if save:
        file = _saved(
            save, folder, first_job.with_overrides(job, overrides, folder, cluster), target, containers=containers
        )

    def planned() -> Prepared:
        return _planned(job, file, cluster, overrides, containers=containers)

    asked = offers.made_ready(planned, target, yes=yes, containers=containers)
    follow_run(submit_asked(asked, [], as_json=False, say_how=False)[0])


def _planned(job: Table, file: Path, cluster: str | None, overrides: list[str], *, containers: bool) -> Prepared:
    """Plan the table, as a submit plans a file, and print the warnings."""
    from kit import config
    from kit.cli.submit_messages import show_warnings
    from kit.submission.prepare_run import prepare_sources

    made = prepare_sources(config.job_of(job, file, cluster=cluster, overrides=overrides), containers=containers)
    show_warnings([made])
    return made


def _require_all(job: Table, target: JobPlace, *, containers: bool) -> None:
    """Without a terminal and without --yes nothing may be asked: one error for all that is missing, with the line to type."""
    from kit.errors import ImageError, SlurmError
    from kit.workflow import what_is_missing

    down = target.down()
    lacking = what_is_missing.unbuilt(job, target) if containers else ""
    found = [f"cluster {down!r} is not up"] if down else []
    found += [f"image {lacking!r} is not built"] if lacking else []
    if found:
        hint = f"kit run --yes {shlex.join(sys.argv[2:])}"
        raise (SlurmError if down else ImageError)(
            f"{', and '.join(found)}, and there is no terminal to ask on", hint=hint
        )


def _saved(save: Path, folder: Path, job: dict[str, Any], target: JobPlace, *, containers: bool) -> Path:
    """Write the job file, which must be in the program's folder, since paths in it are relative to it. Return its path."""
    from kit.errors import UsageError
    from kit.files import untrusted_files
    from kit.workflow import first_job

    path = save / "job.toml" if save.is_dir() else save
    if path.exists():
        raise UsageError(f"--save {path}: the file exists already", hint=f"kit submit {path} --follow")
    if path.parent.resolve() != folder.resolve():
        problem = f"--save {path}: the paths of a job start at its file, and the program's folder is {folder}"
        raise UsageError(problem, hint=f"--save {folder / path.name}")
    untrusted_files.write_text(path, first_job.text_of(job))
    words = ["kit", "submit", *([] if path.name == "job.toml" and not save.parent.name else [str(path)])]
    words += ["-c", target.cluster] if target.cluster else []
    words += [] if containers else ["--no-container"]
    print(f"kit: {path} has what was used: '{shlex.join([*words, '--follow'])}' repeats it", file=sys.stderr)
    return path
