"""kit submit."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kit.cli.job_options import After, Base, ClusterChoice, Containers, Follow, JobFile, Overrides, Point, Wait, Yes
from kit.cli.json_options import ManifestJson
from kit.cli.print_json import print_json
from kit.cli.render import jobs_of, part_of, prepare_asked, render_asked
from kit.cli.submit_messages import after_an_interrupt, announced, following, outlooks, show_advice, show_outlook

if TYPE_CHECKING:
    from kit.cli.render import Asked
    from kit.forecast.answers import WhenAnswer
    from kit.forecast.submit_forecast import Outlook
    from kit.pair.two_clusters import TwoRuns
    from kit.record.manifest import Manifest
    from kit.slurm.client import ExpectedStart
    from kit.submission.prepare_run import Prepared
    from kit.workflow.stages import PreparedStage


Debug = Annotated[
    bool,
    typer.Option(
        "--debug",
        help="Submit a short run on at most 2 nodes, with traced scripts and verbose logs of NCCL and PyTorch.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Same as 'kit render'.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="With --dry-run: write the files to this folder.")]


def submit(
    job: JobFile = Path("job.toml"),
    cluster: ClusterChoice = None,
    containers: Containers = True,
    set_: Overrides = None,
    wait: Wait = False,
    follow: Follow = False,
    debug: Debug = False,
    after: After = None,
    dry_run: DryRun = False,
    output: Output = None,
    point: Point = None,
    base: Base = False,
    yes: Yes = False,
    as_json: ManifestJson = False,
) -> None:
    """Write the run folder and submit the job to Slurm.

    Words after -- change the arguments of the program: kit submit -- --lr 0.05
    """
    from kit.cli import offers
    from kit.cli.wait_and_follow import follow_run, wait_run
    from kit.config.program_arguments import with_keys
    from kit.errors import UsageError
    from kit.submission.prepare_run import Prepared

    if output and not dry_run:
        raise UsageError(
            "--output works only together with --dry-run",
            hint="paths.runs in clusters/<name>.toml sets the folder",
        )
    if as_json and follow:
        raise UsageError(
            "--json and --follow both write to stdout", hint="'kit submit --json --wait' waits for the end"
        )
    overrides = with_keys(set_ or [], ["debug=true"] if is_true(os.environ.get("DEBUG", "")) else [])

    part = part_of(point, base=base)

    def planned() -> Asked:
        return prepare_asked(job, cluster, overrides=overrides, containers=containers, debug=debug, part=part)

    if dry_run:
        render_asked(planned(), output, as_json=as_json)
        return
    asked = offers.made_ready(planned, offers.place_of(job, cluster), yes=yes, containers=containers)
    if not isinstance(asked, Prepared) and (debug or follow or after):
        kind, those = ("with [stages]", "all") if isinstance(asked, tuple) else ("on two clusters", "both")
        raise UsageError(
            f"--debug, --follow and --after do not work for a job {kind}", hint=f"--wait waits for {those}"
        )
    folders = submit_asked(asked, after or [], as_json=as_json, say_how=not follow)
    if follow:
        follow_run(folders[0])
        return
    for folder in folders if wait else ():
        wait_run(folder)


def submit_asked(asked: Asked, after: list[str], *, as_json: bool, say_how: bool) -> list[Path]:
    """Submit what a job file asks for. Returns the run folders."""
    from kit.submission.prepare_run import Prepared

    show_advice(jobs_of(asked))
    if not isinstance(asked, Prepared | tuple):
        return _submit_pair(asked, as_json=as_json)
    forecasts = outlooks(jobs_of(asked))
    if isinstance(asked, tuple):
        return _submit_stages(asked, as_json=as_json)
    return [submit_run(asked, after, as_json=as_json, say_how=say_how, outlook=forecasts[0])]


def _submit_pair(pair: TwoRuns, *, as_json: bool) -> list[Path]:
    """Submit both runs and print their folders, or their manifests."""
    from kit.pair import two_clusters

    manifests: dict[str, Manifest] = {}

    def say(prepared: Prepared, manifest: Manifest) -> None:
        manifests[prepared.plan.cluster] = manifest
        print(announced(manifest), file=sys.stderr)

    two_clusters.submit_pair(pair, say=say)
    if as_json:
        print_json("submit", {name: record.model_dump(mode="json") for name, record in manifests.items()}, named=True)
    else:
        print(*(prepared.folder for prepared in pair.runs), sep="\n")
    for prepared in pair.runs:
        print(f"kit logs {prepared.plan.run_id} -f", file=sys.stderr)
    return [prepared.folder for prepared in pair.runs]


def submit_run(
    ready: Prepared, after: list[str], *, as_json: bool, say_how: bool, outlook: Outlook | None = None
) -> Path:
    """Submit one job and print its folder, or its manifest. With an outlook, print the forecast of its start and end."""
    from kit.cli.runs import folders
    from kit.cli.wait_and_follow import queue
    from kit.forecast import answers
    from kit.submission.submit import submit as send
    from kit.workflow.dependencies import with_dependency

    if after:
        ready = with_dependency(ready, after, folders(None), queue=queue())
    starts: list[WhenAnswer | None] = []

    def expected(slurms: ExpectedStart | None) -> None:
        # A job that waits for other runs starts after them, and their end is not known.
        starts.append(answers.at_submit(ready, slurms) if outlook is not None and not after else None)

    try:
        manifest = send(ready, expected=expected)
    except KeyboardInterrupt:
        print(after_an_interrupt(ready), file=sys.stderr)
        raise
    print(announced(manifest), file=sys.stderr)
    if outlook is not None:
        show_outlook(outlook, starts[0] if starts else None)
    if as_json:
        print_json("submit", manifest.model_dump(mode="json"))
    else:
        print(ready.folder)
    if say_how:
        print(*following(ready.plan), sep="\n", file=sys.stderr)
    return ready.folder


def _submit_stages(prepared: tuple[PreparedStage, ...], *, as_json: bool) -> list[Path]:
    """Submit all stages and print their run folders, or their manifests."""
    from kit.workflow import stages

    manifests: dict[str, Manifest] = {}

    def say(name: str, manifest: Manifest) -> None:
        manifests[name] = manifest
        print(f"stage {name}: job {manifest.job_id}", file=sys.stderr)

    folders = stages.submit_all(prepared, say=say)
    if as_json:
        print_json(
            "submit", {name: manifest.model_dump(mode="json") for name, manifest in manifests.items()}, named=True
        )
    else:
        print(*folders, sep="\n")
    return folders


def is_true(text: str) -> bool:
    """Whether a text means true: on, y, yes, t, true, 1 in any case, as the scripts read DEBUG. "not" and "21" do not."""
    return re.fullmatch(r"1|on|y|yes|t|true", text.strip(), re.IGNORECASE) is not None
