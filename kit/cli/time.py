"""kit time."""

from __future__ import annotations

import time as clock
from typing import TYPE_CHECKING, Annotated

import typer

from kit.cli import completion_candidates
from kit.cli.json_options import Json
from kit.cli.print_json import print_json
from kit.cli.runs import RunsDir, fetched
from kit.files.safe_text import clean

if TYPE_CHECKING:
    from kit.ledger.ledger import Ledger
    from kit.schema.cluster import Price

_BAR = 24


def time(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN|SWEEP]",
            help="A run or a sweep: its folder, its id, the first characters of the id, or a Slurm job id; "
            "default: the newest run.",
            autocompletion=completion_candidates.runs_and_sweeps,
        ),
    ] = None,
    runs_dir: RunsDir = None,
    as_json: Json = False,
) -> None:
    """Show how a run or a sweep spent its time. Each second of a rank is in one account. Goodput and cost are shown, too."""
    from kit.cli.wait_and_follow import queue
    from kit.ledger.as_json import as_dict
    from kit.ledger.find import ledgers
    from kit.ledger.ledger import together

    found = ledgers(name, fetched(runs_dir, [name]), queue=queue(), now=clock.time())
    whole = found.ledgers[0] if found.sweep is None else together(found.sweep, found.ledgers)
    if as_json:
        print_json("time", as_dict(whole, found.price))
        return
    _print(whole, found.price, points=0 if found.sweep is None else len(found.ledgers))


def _print(ledger: Ledger, price: Price | None, *, points: int) -> None:
    from kit.cli.print_table import Column, show
    from kit.ledger.time_accounts import MEANINGS

    what = f"{points} points, {ledger.ranks} ranks" if points else f"{ledger.ranks} ranks x {_duration(ledger.wall)}"
    print(clean(f"{ledger.run_id}: {what} = {_duration(ledger.total)} of ranks{', so far' if ledger.live else ''}"))
    paid = price is not None and ledger.gpu_seconds > 0
    rows = []
    for account, seconds in ledger.accounts.items():
        share = seconds / ledger.total if ledger.total else 0.0
        cost = [f"{ledger.cost_of(account, price.gpu_hour):,.2f}"] if paid and price else []
        bar = "#" * max(1, round(share * _BAR))
        rows.append([str(account), f"{seconds:,.1f}", f"{share:.1%}", *cost, bar, MEANINGS[account]])
    spent = [Column(price.currency, 3)] if paid and price else []
    show([Column("account"), Column("rank-s"), Column("share"), *spent, Column("", 2), Column("is", 1)], rows)
    print(
        f"ETTR {ledger.ettr:.1%}   goodput {ledger.goodput:.1%} = scheduling {ledger.scheduling_goodput:.1%} x "
        f"runtime {ledger.runtime_goodput:.1%}"
        + (f"   MFU {ledger.mfu:.1%}" if ledger.mfu is not None else "")
        + (f"   {ledger.gpu_seconds / 3600:,.2f} GPU-hours" if ledger.gpu_seconds else "")
        + (f", {ledger.cost(price.gpu_hour):,.2f} {clean(price.currency)}" if paid and price else "")
    )
    for note in ledger.notes:
        print(clean(f"note: {note}"))


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {left:02} s"
