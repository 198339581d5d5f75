"""warm_meeting.py: a rank that starts again lets rank 0 listen first."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.support import REPO

ENV = {"RANK": "1", "MASTER_ADDR": "127.0.0.1"}


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(REPO / "templates" / "kit_node"), *sys.path])
    return import_module("warm_meeting")


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def paused(meeting: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], Any]], list[float]]:
    """Lets a test do something in each pause, instead of waiting. Time passes only there."""

    def with_action(action: Callable[[int], Any]) -> list[float]:
        pauses: list[float] = []

        def sleep(seconds: float) -> None:
            pauses.append(seconds)
            action(len(pauses))

        # Only this module's clock: other threads of the tests sleep, too.
        monkeypatch.setattr(meeting, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: sum(pauses)))
        return pauses

    return with_action


def test_a_rank_waits_until_rank_0_listens(
    meeting: ModuleType, free_port: int, paused: Callable[[Callable[[int], Any]], list[float]]
) -> None:
    """torch's second try to connect came 0.25 to 0.75 seconds after the first one."""
    servers: list[socket.socket] = []
    pauses = paused(lambda n: servers.append(socket.create_server(("127.0.0.1", free_port))) if n == 3 else None)
    meeting.wait_for_rank_0({**ENV, "MASTER_PORT": str(free_port)})
    assert (len(pauses), len(servers)) == (3, 1)
    for one in servers:
        one.close()


def test_the_wait_ends_where_nobody_listens(
    meeting: ModuleType, free_port: int, paused: Callable[[Callable[[int], Any]], list[float]]
) -> None:
    """A program may load its data first, or not join the others at all."""
    pauses = paused(lambda _: None)
    meeting.wait_for_rank_0({**ENV, "MASTER_PORT": str(free_port)})
    assert 0.3 <= sum(pauses) < 0.4


@pytest.mark.parametrize(
    "changes", [{"RANK": "0"}, {"MASTER_PORT": ""}, {"MASTER_PORT": "none"}, {"MASTER_ADDR": ""}], ids=str
)
def test_rank_0_and_a_rank_without_an_address_do_not_wait(
    meeting: ModuleType,
    free_port: int,
    paused: Callable[[Callable[[int], Any]], list[float]],
    changes: dict[str, str],
) -> None:
    pauses = paused(lambda _: None)
    meeting.wait_for_rank_0({**ENV, "MASTER_PORT": str(free_port), **changes})
    assert pauses == []
