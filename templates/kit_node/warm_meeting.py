"""Lets a rank that starts again wait for a moment until rank 0 listens at MASTER_PORT.

Ranks that are forked again or live on begin within milliseconds of each other, so most of them connect before rank 0 has made its
TCPStore. torch then tries again only after 0.25 to 0.75 seconds (torch 2.13, seen). This is more than the rest of such a start.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping

__all__ = ["wait_for_rank_0"]

# A program may do other things before it joins the others, or not join them at all, so the wait is short.
_LONGEST_S, _PAUSE_S, _LONGEST_PAUSE_S = 0.3, 0.005, 0.05


def wait_for_rank_0(env: Mapping[str, str]) -> None:
    """Wait until something listens at MASTER_ADDR and MASTER_PORT of env, for 0.3 seconds at most. Rank 0 does not wait."""
    address, port = env.get("MASTER_ADDR", ""), env.get("MASTER_PORT", "")
    if env.get("RANK", "0") == "0" or not address or not port.isdigit():
        return
    ends_at, pause = time.monotonic() + _LONGEST_S, _PAUSE_S
    while True:
        left = ends_at - time.monotonic()
        if left <= 0 or _listens(address, int(port), left):
            return
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _listens(address: str, port: int, seconds: float) -> bool:
    try:
        socket.create_connection((address, port), timeout=seconds).close()
    except (OSError, OverflowError):
        return False
    return True
