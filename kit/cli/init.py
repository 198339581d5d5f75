"""kit init."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kit.cli import completion_candidates
from kit.cli.job_options import ClusterName
from kit.files import untrusted_files

if TYPE_CHECKING:
    from kit.workflow.first_job import FirstJob

_OWN = "train.py, main.py or the only .py file of the folder, else the launcher's example"


Folder = Annotated[Path, typer.Argument(help="The folder for the new job.toml.", show_default="the working directory")]
Script = Annotated[
    Path | None,
    typer.Option("--script", help="The path of your program, relative to the folder.", show_default=_OWN),
]
LauncherOption = Annotated[
    str | None,
    typer.Option(
        "--launcher",
        help="The launcher, which starts the ranks: a name in launchers/.",
        show_default="ddp",
        autocompletion=completion_candidates.launchers,
    ),
]
Image = Annotated[
    str | None,
    typer.Option(
        "--image",
        help="The job's image: a name in containers/.",
        show_default="train-cpu, or a new image with the packages of requirements.txt or pyproject.toml",
        autocompletion=completion_candidates.images,
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite an existing job.toml.")]
Base = Annotated[
    str | None,
    typer.Option(
        "--from",
        help="Create a new image, based on this one, instead of a job file. --image gives the new image its name.",
        autocompletion=completion_candidates.images,
    ),
]
Pip = Annotated[
    list[str] | None,
    typer.Option(
        "--pip",
        help="A Python package for the new image; repeatable. Without --from, the new image is based on train-cpu.",
    ),
]
FromDockerfile = Annotated[
    Path | None,
    typer.Option(
        "--from-dockerfile",
        metavar="PATH",
        help="Create a new image of this Dockerfile, or of a folder's own, instead of a job file. Nothing is copied.",
    ),
]
Requirements = Annotated[
    Path | None,
    typer.Option(
        "--requirements",
        metavar="FILE",
        help="Create a new image with the Python packages of this file: requirements.txt, pyproject.toml, uv.lock, "
        "poetry.lock, or an environment.yml with packages of pip.",
    ),
]
Extra = Annotated[
    list[str] | None,
    typer.Option("--extra", help="Optional dependencies of the file of --requirements, by their name; repeatable."),
]


def init(
    folder: Folder = Path(),
    script: Script = None,
    launcher: LauncherOption = None,
    image: Image = None,
    cluster: ClusterName = None,
    force: Force = False,
    base: Base = None,
    pip: Pip = None,
    from_dockerfile: FromDockerfile = None,
    requirements: Requirements = None,
    extra: Extra = None,
) -> None:
    """Write a first job file that runs your program or the launcher's example. On a terminal, kit asks for missing values."""
    from kit import config, data_folders
    from kit.errors import UsageError
    from kit.workflow import first_job

    if base or pip or from_dockerfile or requirements or extra:
        from kit.workflow import own_image

        wanted = own_image.OwnImage(
            name=image,
            base=base,
            packages=tuple(pip or ()),
            dockerfile=from_dockerfile,
            requirements=requirements,
            extras=tuple(extra or ()),
        )
        print(own_image.write(wanted, folder, _say))
        print(f"next: kit build-image {image}", file=sys.stderr)
        return
    path = folder / "job.toml"
    if path.exists() and not force:
        raise UsageError(f"{path}: the file exists already", hint="--force writes over it")
    project = data_folders.project(folder)
    default = config.default_cluster(project)
    script = script or (first_job.own_program(folder) if launcher is None else None)
    if sys.stdin.isatty() and sys.stderr.isatty():
        script = _asked_script(script)
        image = image or typer.prompt(
            "Image of containers/", default=first_job.image_for(folder, script, project), err=True
        )
        cluster = cluster or typer.prompt("Cluster of clusters/", default=default, err=True)
    starts = data_folders.find(
        "launchers", launcher or "ddp", project_dir=project, asked_by="--launcher", key="launcher"
    )
    asked = first_job.FirstJob(
        folder=folder,
        script=script,
        launcher=starts,
        image=image or first_job.image_for(folder, script, project),
        cluster=config.cluster_entry(cluster, project),
    )
    _write_checked(path, asked, cluster)
    _say_next(folder, asked.image, cluster or default)


def _write_checked(path: Path, asked: FirstJob, cluster: str | None) -> None:
    """Write the job file, and the image that it needs. If the job cannot be planned, print the faults and leave nothing changed."""
    from kit import data_folders
    from kit.workflow import first_job, own_packages

    project = data_folders.project(asked.folder)
    job = first_job.table(asked)
    made = first_job.write_image(asked, _say)
    try:
        _write_if_planned(path, first_job.text_of(job), cluster)
    except BaseException:
        if made is not None:
            own_packages.remove(made)
        raise
    print(path)
    if job["resources"].get("gpus_per_node") == 0 and first_job.has_cpu_torch(asked):
        print(f"the job asks for no GPUs: {asked.image} has torch for CPUs", file=sys.stderr)
    for one in job.get("mounts", ()):
        print(f"{one['source']}/ is mounted at {one['target']}, read-only", file=sys.stderr)
    if lines := first_job.ignore_outputs(project):
        print(f"{project / '.gitignore'}: {' '.join(lines)}", file=sys.stderr)


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _asked_script(found: Path | None) -> Path | None:
    text = "Your program" if found else "Your program (empty: the launcher's example)"
    answer = typer.prompt(text, default=str(found or ""), show_default=bool(found), err=True)
    return Path(answer) if answer.strip() else None


def _write_if_planned(path: Path, text: str, cluster: str | None) -> None:
    """Write the job file if it can be planned, except for an image that is not built. Else an existing file stays unchanged."""
    from kit.errors import ConfigError, NotBuiltError
    from kit.submission.prepare_run import prepare_job

    before = untrusted_files.read_text(path) if path.exists() else None
    path.parent.mkdir(parents=True, exist_ok=True)
    untrusted_files.write_text(path, text)
    try:
        prepare_job(path, cluster=cluster, overrides=[])
    except NotBuiltError:
        return
    except ConfigError:
        path.unlink() if before is None else path.write_text(before, encoding="utf-8")
        raise


def _say_next(folder: Path, image: str, cluster: str) -> None:
    """Print the next commands, and the one that does what they do."""
    steps = _next_steps(folder, image, cluster)
    print("next: " + "; ".join(steps), file=sys.stderr)
    if len(steps) > 1:
        print(f"or all at once: {steps[-1]} --yes", file=sys.stderr)


def _next_steps(folder: Path, image: str, cluster: str) -> list[str]:
    """The next commands, up to a run."""
    from kit import config, data_folders
    from kit.workflow import what_is_missing

    project = data_folders.project(folder)
    target = what_is_missing.JobPlace(cluster, project)
    name = "" if cluster == "local" else f" --name {cluster}"
    where = "" if folder == Path() else f" {folder}"
    option = "" if cluster == config.default_cluster(project) else f" -c {cluster}"
    return [
        *([f"kit cluster up{name}"] if target.down() else []),
        *([f"kit build-image {image}"] if what_is_missing.lacking(image, target.store(), project) else []),
        f"kit submit{where}{option} --follow",
    ]
