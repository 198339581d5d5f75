"""kit init."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kit import untrusted_files
from kit.cli import completion_candidates
from kit.cli.job_options import ClusterName

if TYPE_CHECKING:
    from kit.data_folders import Entry

_OWN = "the launcher's example"
_HEAD = "# `kit render` shows what this becomes, `kit submit --follow` runs it. All keys: `kit schema job`, docs/guides/jobs.md.\n"


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
        show_default="train-cpu",
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


def init(
    folder: Folder = Path(),
    script: Script = None,
    launcher: LauncherOption = None,
    image: Image = None,
    cluster: ClusterName = None,
    force: Force = False,
    base: Base = None,
    pip: Pip = None,
) -> None:
    """Write a first job file that runs your program or the launcher's example. On a terminal, kit asks for missing values."""
    from kit import config, data_folders
    from kit.errors import UsageError

    if base or pip:
        _write_image(image, base or "train-cpu", pip or [], data_folders.project(folder))
        return
    path = folder / "job.toml"
    if path.exists() and not force:
        raise UsageError(f"{path}: the file exists already", hint="--force writes over it")
    project = data_folders.project(folder)
    default = config.default_cluster(project)
    if sys.stdin.isatty() and sys.stderr.isatty():
        script = script or _asked_script()
        image = image or typer.prompt("Image of containers/", default="train-cpu", err=True)
        cluster = cluster or typer.prompt("Cluster of clusters/", default=default, err=True)
    image = image or "train-cpu"
    starts = data_folders.find(
        "launchers", launcher or "ddp", project_dir=project, asked_by="--launcher", key="launcher"
    )
    text = _first_job(folder, script, starts, image, config.cluster_entry(cluster, project))
    _write_checked(path, text, cluster)
    print(path)
    print("next: " + "; ".join(_next_steps(folder, image, cluster or default)), file=sys.stderr)


def _write_image(name: str | None, base: str, packages: list[str], project: Path) -> None:
    from kit.errors import UsageError
    from kit.images import first_image

    if not name:
        raise UsageError(
            "--from and --pip describe a new image, and --image does not name it",
            hint="kit init --image mine --from train-cpu",
        )
    print(first_image.write(name, base=base, packages=packages, project=project))
    print(f"next: kit build-image {name}", file=sys.stderr)


def _asked_script() -> Path | None:
    answer = typer.prompt("Your program (empty: the launcher's example)", default="", show_default=False, err=True)
    return Path(answer) if answer.strip() else None


def _first_job(folder: Path, script: Path | None, launcher: Entry, image: str, cluster: Entry) -> str:
    """The text of job.toml: two nodes on the embedded cluster if the launcher can use them, one on any other."""
    import re

    import tomli_w

    from kit import config
    from kit.errors import UsageError
    from kit.spec.cluster import Cluster
    from kit.spec.launcher import Launcher

    if script is not None and not (folder / script).is_file():
        raise UsageError(f"--script {script}: no such file in {folder.resolve()}", hint="name your program's file")
    place = config.load_model(cluster.path, Cluster)
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "first"
    job: dict[str, Any] = {
        "name": name if name[0].isalpha() else f"job-{name}",
        "launcher": launcher.name,
        "image": image,
    }
    if script is not None:
        job["script"] = str(script)
    elif launcher.name == "ddp":
        job["args"] = ["--epochs", "12"]
    starts = config.load_model(launcher.path, Launcher)
    resources = {"nodes": 2, "gpus_per_node": 2} if place.embedded else {"nodes": 1, "gpus_per_node": place.node.gpus}
    if starts.most_ranks is not None:
        resources["nodes"] = 1
    if starts.programs:
        del resources["nodes"]  # [sft] and [rl] say it
    return _HEAD + tomli_w.dumps({**job, "resources": resources})


def _write_checked(path: Path, text: str, cluster: str | None) -> None:
    """Write the job file if it can be planned. Otherwise print the faults, and leave an existing file unchanged."""
    from kit.errors import ConfigError
    from kit.runs.prepare_run import prepare

    before = path.read_text(encoding="utf-8") if path.exists() else None
    path.parent.mkdir(parents=True, exist_ok=True)
    untrusted_files.write_text(path, text)
    try:
        prepare(path, cluster=cluster, overrides=[])
    except ConfigError:
        path.unlink() if before is None else path.write_text(before, encoding="utf-8")
        raise


def _next_steps(folder: Path, image: str, cluster: str) -> list[str]:
    """The next commands, up to a run."""
    from kit import config, data_folders
    from kit.images import image_lock
    from kit.slurm import embedded
    from kit.spec.cluster import Cluster

    project = data_folders.project(folder)
    on_this_machine = config.load_model(config.cluster_entry(cluster, project).path, Cluster).embedded
    name = "" if cluster == "local" else f" --name {cluster}"
    where = "" if folder == Path() else f" {folder}"
    option = "" if cluster == config.default_cluster(project) else f" -c {cluster}"
    return [
        *([f"kit cluster up{name}"] if on_this_machine and embedded.find(cluster) is None else []),
        *([f"kit build-image {image}"] if image_lock.find(image, project=project) is None else []),
        f"kit submit{where}{option} --follow",
    ]
