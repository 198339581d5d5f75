"""warm_request: a request comes whole with three open files, and what a fork could not serve exactly is refused with the reason."""

from __future__ import annotations

import array
import json
import os
import resource
import socket
import struct
from pathlib import Path

import pytest
from warm_request import RefusalError, StartRequest, block, check, receive

ENV = {"PATH": "/bin", "RANK": "3", "HOME": "/root"}


def request(
    folder: Path, *, argv: list[str] | None = None, cwd: str = "", cpus: list[int] | None = None
) -> StartRequest:
    (folder / "p.py").write_text("pass\n")
    return {
        "argv": argv or ["python", "p.py"],
        "env": dict(ENV),
        "cwd": cwd or str(folder),
        "umask": 0o22,
        "limits": {"RLIMIT_NOFILE": resource.getrlimit(resource.RLIMIT_NOFILE)},
        "cpus": cpus or sorted(os.sched_getaffinity(0)),
        "ignored": [],
        "mask": [],
        "fds": [],
    }


def send(text: bytes, fds: list[int], *, length: int | None = None) -> socket.socket:
    """What a client sends. Returns the other end."""
    client, server = socket.socketpair()
    head = struct.pack("!I", len(text) if length is None else length)
    client.sendmsg([head], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])
    client.sendall(text)
    client.close()
    return server


def test_a_request_comes_with_three_files_above_2(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as out:
        server = send(json.dumps({"argv": ["x"]}).encode(), [out.fileno()] * 3)
        made = receive(server)
        assert made["argv"] == ["x"]
        assert len(set(made["fds"])) == 3
        assert min(made["fds"]) > 2
        for fd in made["fds"]:
            os.write(fd, b"1")
            os.close(fd)
    assert (tmp_path / "out").read_text() == "111"
    server.close()


@pytest.mark.parametrize(("count", "length"), [(2, None), (0, None), (3, 1000)])
def test_less_than_a_request_is_an_error(tmp_path: Path, count: int, length: int | None) -> None:
    with (tmp_path / "out").open("w") as out:
        server = send(b"{}", [out.fileno()] * count, length=length)
        with pytest.raises(OSError, match=r"the client is gone|not three open files"):
            receive(server)
        server.close()


def test_variables_of_the_rank_may_differ_and_others_may_not(tmp_path: Path) -> None:
    own = {**ENV, "RANK": "0", "SLURM_PROCID": "0", "KIT_WARM_ROOM": "x"}
    check(request(tmp_path), own, 10_000)
    with pytest.raises(RefusalError, match="differs in HOME OMP_NUM_THREADS"):
        check(request(tmp_path), {**own, "HOME": "/home", "OMP_NUM_THREADS": "4"}, 10_000)


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["python"], "no script"),
        (["python", "-m"], "no script"),
        (["python", "-O", "p.py"], "option -O"),
        (["python", "absent.py"], "absent.py: No such file"),
        (["python", "p.zip"], "not Python source"),
    ],
)
def test_a_program_that_a_fork_cannot_run_is_refused(tmp_path: Path, argv: list[str], reason: str) -> None:
    (tmp_path / "p.zip").write_bytes(b"PK\3\4")
    with pytest.raises(RefusalError, match=reason):
        check(request(tmp_path, argv=argv), ENV, 10_000)


def test_what_the_warm_process_may_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusalError, match="no folder"):
        check(request(tmp_path, cwd=str(tmp_path / "absent")), ENV, 10_000)
    with pytest.raises(RefusalError, match="too long"):
        check(request(tmp_path), ENV, len(block(ENV)))
    with pytest.raises(RefusalError, match="CPUs"):
        check(request(tmp_path, cpus=[100_000]), ENV, 10_000)
