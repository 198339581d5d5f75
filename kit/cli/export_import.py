"""kit export, kit import."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kit.cli.json_options import ManifestJson
from kit.cli.print_json import print_json
from kit.cli.runs import RunName, folders


def export(
    run: RunName = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Path of the file to write: .tar.zst or .tar.gz.", show_default="reports/RUN.tar.zst"
        ),
    ] = None,
    outputs: Annotated[
        list[str] | None,
        typer.Option(
            "--outputs",
            metavar="PATTERN",
            help="Include files that the program wrote, such as 'out/*.pt': relative to its working folder or to the run folder. "
            "That of a folder includes all that is in it. Repeatable.",
        ),
    ] = None,
    with_image: Annotated[
        bool,
        typer.Option(
            "--with-image",
            help="Include the .sqsh files of the run's images. Without this option, the file contains only their locks.",
        ),
    ] = False,
    with_private: Annotated[
        bool,
        typer.Option(
            "--with-private",
            help="Include files and values that look like keys, logins or tokens, instead of refusing them.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the file's path, size and contents as JSON.")] = False,
) -> None:
    """Pack an ended run into one file: code, job, locks, manifest, logs, metrics. What looks like a key is refused."""
    from kit.archive import exporting
    from kit.hosts import clusters
    from kit.record import reports_folder

    run_dir = _find_ended_run(run)
    if outputs:
        _require_outputs_here(run_dir)
    clusters.fetch_whole(run_dir)
    file = output or reports_folder.shown(reports_folder.take() / f"{run_dir.name}.tar.zst")
    done = exporting.export(run_dir, file, outputs=outputs or (), with_image=with_image, with_private=with_private)
    size, count = done.file.stat().st_size, len(done.index.members)
    if as_json:
        facts = {"file": str(done.file), "bytes": size, "left_out": done.left_out, **done.index.model_dump(mode="json")}
        print_json("export", facts)
        return
    print(done.file)
    print(f"{count} files, {size / 1e6:.1f} MB; not in it: {', '.join(done.left_out) or 'nothing'}", file=sys.stderr)


def _find_ended_run(run: str | None) -> Path:
    """The run's folder. RunError if Slurm still has its job."""
    from kit.cli.wait_and_follow import queue
    from kit.errors import RunError
    from kit.hosts import status as host_status
    from kit.record import find_runs

    run_dir = find_runs.find_one(run, folders(None, run))
    (one,) = host_status.read_statuses([run_dir], queue=queue())
    if one.active:
        raise RunError(f"run {run_dir.name} is {one.state}: it has not ended", hint=f"kit cancel {run_dir.name}")
    return run_dir


def _require_outputs_here(run_dir: Path) -> None:
    """UsageError if what the program wrote is on another machine: the mirror of a run over ssh has its record alone."""
    from kit.errors import UsageError
    from kit.hosts import clusters

    there = clusters.mirrored_host(run_dir)
    if there is not None:
        raise UsageError(
            f"--outputs: what the program of {run_dir.name} wrote is on {there.name}, not on this machine",
            hint=f"scp -r {there.connection.host}:{there.refresh().there.runs}/{run_dir.name}/workspace .",
        )


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that 'kit export' wrote.")],
    runs_dir: Annotated[
        Path | None,
        typer.Option(
            "--runs",
            help="The folder in which to put the run.",
            show_default="the folder of the run's cluster, or of the default cluster if the run's is not known here",
        ),
    ] = None,
    as_json: ManifestJson = False,
) -> None:
    """Unpack a run that 'kit export' packed. kit status, logs and rerun then work on it. Each file's digest is checked."""
    from kit import config, data_folders
    from kit.archive import importing
    from kit.record import find_runs, manifest
    from kit.schema.cluster import Cluster
    from kit.schema.run_paths import RunPaths

    project = data_folders.project()
    named = importing.read_index(file).cluster
    known = named in data_folders.names("clusters", project_dir=project)
    place = config.load_model(config.cluster_entry(named if known else None, project).path, Cluster)
    imported_run = importing.bring_in(
        file,
        runs_dir=(runs_dir or find_runs.folder_of(place, project)).absolute(),
        image_store=find_runs.store_of(place, project),
    )
    for link in imported_run.outward:
        print(f"kit: warning: {link} leads out of its code: what is there here is another", file=sys.stderr)
    said = "was brought in" if imported_run.new else "is here already: nothing was changed"
    print(f"run {imported_run.run_dir.name} {said}", file=sys.stderr)
    if not known:
        print(
            f"cluster {named!r} is not known here: 'kit rerun {imported_run.run_dir.name} --cluster C'", file=sys.stderr
        )
    if as_json:
        print_json("import", manifest.read_manifest(RunPaths(imported_run.run_dir).manifest).model_dump(mode="json"))
    else:
        print(imported_run.run_dir)
