"""kit when."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kit.cli import completion_candidates
from kit.cli.job_options import Containers, JobFile, Overrides
from kit.cli.json_options import Json
from kit.cli.print_json import print_json
from kit.files.safe_text import clean

if TYPE_CHECKING:
    from kit.forecast.answers import WhenAnswer
    from kit.schema.alternative_sizes import JobSize

# Keys whose values are text, even if TOML would read a number.
_WORDS = frozenset({"time", "qos", "partition"})


def when(
    job: JobFile = Path("job.toml"),
    cluster: Annotated[
        list[str] | None,
        typer.Option(
            "--cluster",
            "-c",
            help="A cluster to ask: a name in clusters/; repeatable.",
            show_default="the default cluster of kit submit",
            autocompletion=completion_candidates.clusters,
        ),
    ] = None,
    everywhere: Annotated[
        bool, typer.Option("--everywhere", help="Ask all clusters that can be reached from this machine.")
    ] = False,
    or_: Annotated[
        list[str] | None,
        typer.Option(
            "--or",
            metavar="KEY=VALUE,…",
            help="Another size to try, such as nodes=4,time=2:00:00, in addition to the sizes in the job's when tables; "
            "repeatable.",
        ),
    ] = None,
    containers: Containers = True,
    set_: Overrides = None,
    as_json: Json = False,
) -> None:
    """Show when a job would start on each cluster and with each allowed size, earliest start first. Nothing is submitted."""
    from kit.errors import SlurmError, UsageError
    from kit.forecast import answers

    if everywhere and cluster:
        raise UsageError("--everywhere and --cluster contradict each other", hint="leave one out")
    replies = answers.ask(
        job,
        clusters=answers.every_cluster() if everywhere else cluster or [None],
        overrides=list(set_ or []),
        containers=containers,
        more=tuple(map(_choice, or_ or ())),
        say=lambda line: print(f"kit: {clean(line)}", file=sys.stderr),
    )
    if not replies:
        raise SlurmError(
            "no cluster could be asked", hint="kit cluster up starts one here; kit cluster login NAME connects by ssh"
        )
    if as_json:
        print_json("when", [one.as_dict() for one in replies])
    else:
        print(*map(clean, _lines(replies)), sep="\n")


def _choice(text: str) -> JobSize:
    """`nodes=4,time=2:00:00` as a [[when]] table. ConfigError if it is not valid."""
    from kit import config
    from kit.config import parse_overrides
    from kit.schema.alternative_sizes import JobSize

    given = {key: value for part in text.split(",") for key, value in parse_overrides([part]).items()}
    values = {key: str(value) if key in _WORDS else value for key, value in given.items()}
    return config.validate(values, JobSize, file=f"--or {text}")


def _lines(answers: list[WhenAnswer]) -> list[str]:
    from kit.forecast.answers import line, size_of
    from kit.forecast.time_wording import span

    several = len({answer.cluster for answer in answers}) > 1
    shown = []
    for answer in answers:
        shown.append(line(answer, several=several))
        if (
            answer.start
            and answer.gap
            and answer.start.by_limits
            and answer.start.by_limits - answer.now > 60
            and answer.gap >= 60
        ):
            shown.append(f"  a time limit of {span(answer.gap // 60 * 60)} or less would start now")
    best = next((answer for answer in answers if answer.start is not None and answer.command), None)
    if best is not None and len(answers) > 1:
        shown.append(best.command if best is answers[0] else f"{best.command}  # {size_of(best, several=several)}")
    return shown
