"""The id of a new run, and the seed of a job that has none: both are drawn anew each time."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime


def new_run_id(name: str, now: datetime | None = None) -> str:
    """The id of a new run of a job: its name, the time in UTC, and two random bytes."""
    return f"{name}-{now or datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def new_seed() -> int:
    """A seed of 31 bits."""
    return secrets.randbits(31)
