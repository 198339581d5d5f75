"""Times and durations in words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from kit.slurm.queue_snapshot import UNLIMITED

# A start within a minute counts as now: Slurm itself needs that long.
_NOW_S = 60.0


def iso(time: float | None) -> str | None:
    """A time in UTC, to the second, in ISO 8601 form."""
    return (
        None if time is None or time == UNLIMITED else datetime.fromtimestamp(time, UTC).isoformat(timespec="seconds")
    )


def moment(time: float, now: float) -> str:
    """A time in local time: `now`, `at 14:10`, `tomorrow at 03:20`, `on Thu 26 Nov at 03:20`."""
    if time - now < _NOW_S:
        return "now"
    at, today = datetime.fromtimestamp(time).astimezone(), datetime.fromtimestamp(now).astimezone()
    if at.date() == today.date():
        return f"at {at:%H:%M}"
    if at.date() == today.date() + timedelta(days=1):
        return f"tomorrow at {at:%H:%M}"
    return f"on {at:%a %d %b} at {at:%H:%M}"


def span(seconds: float) -> str:
    """A duration: `45 s`, `50 min`, `2 h`, `1 h 30 min`, `3 d 4 h`; `no limit` if it is infinite."""
    if seconds == UNLIMITED:
        return "no limit"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes if not days else 0, "min")]
    return " ".join(f"{count} {unit}" for count, unit in parts if count)


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 node`, `2 nodes`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")
