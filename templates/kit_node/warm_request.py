"""A client's request for a rank, and the reasons for which a fork could not serve it exactly."""

from __future__ import annotations

import array
import fcntl
import json
import os
import resource
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import TypedDict, cast

# The room in /proc/PID/environ for a rank's variables: worker.sh starts the warm process with a variable of this length.
PAD = "KIT_WARM_ROOM"
# Variables that differ between ranks, or between a rank and the warm process. No module may read them while it is imported there.
_PER_RANK = {
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
    # Of lib/recorder_variables.sh; torch reads them when it makes a process group.
    *(
        "TORCH_FR_DUMP_TEMP_FILE",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
        "TORCH_NCCL_TRACE_BUFFER_SIZE",
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
    ),
    *("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"),
    *("PWD", "OLDPWD", "SHLVL", "_", "SRUN_DEBUG", PAD),
    # Of interactive shells. The activate script of a virtual environment puts its name before the PS1 that it finds.
    *("PS1", "PS2", "PS4", "PROMPT_COMMAND", "COLUMNS", "LINES", "_OLD_VIRTUAL_PS1"),
}
_PER_RANK_PREFIXES = ("SLURM_", "SLURMD_", "KIT_", "PMI_", "PMIX_", "TORCHELASTIC_")
# Bytes for what is added to the environment of a rank.
_MARGIN = 256


class StartRequest(TypedDict):
    """What a client asks for: a program, and what it would have had by a plain start.

    limits: name of a limit -> the soft and the hard one. cpus: their numbers. ignored, mask: numbers of signals. fds: standard
    input, output and error, as open files of this process.
    """

    argv: list[str]
    env: dict[str, str]
    cwd: str
    umask: int
    limits: dict[str, tuple[int, int]]
    cpus: list[int]
    ignored: list[int]
    mask: list[int]
    fds: list[int]


class RefusalError(Exception):
    """A request that no fork can serve exactly. The text is the reason."""


def receive(connection: socket.socket) -> StartRequest:
    """A request: its length in four bytes with the open files, then JSON."""
    room = socket.CMSG_LEN(3 * 4)
    head, ancillary, _, _ = connection.recvmsg(4, room)
    fds: array.array[int] = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    length, text = struct.unpack("!I", head)[0] if len(head) == 4 else 0, b""
    while len(text) < length:
        more = connection.recv(length - len(text))
        if not more:
            raise OSError("the client is gone")
        text += more
    # The client is of the same user, and of the same run.
    request = cast(StartRequest, json.loads(text.decode()))
    # Three numbers above 2: dup2 to 0, 1 and 2 in turn must not close a file that comes later.
    request["fds"] = [_above_two(fd) for fd in fds]
    if len(fds) != 3:
        raise OSError("not three open files")
    return request


def check(request: StartRequest, own_env: Mapping[str, str], room: int) -> None:
    """RefusalError where a fork differs from a plain start. own_env: of the warm process; room: bytes for an environment."""
    mine, its = (_shared(env) for env in (own_env, request["env"]))
    differ = sorted(name for name in {*mine, *its} if mine.get(name) != its.get(name))
    if differ:
        raise RefusalError(f"the rank's environment differs in {' '.join(differ[:5])}")
    if not os.access(request["cwd"], os.X_OK):
        raise RefusalError(f"the warm process has no folder {request['cwd']}")
    _check_words(request["argv"], request["cwd"])
    if len(block(request["env"])) + _MARGIN > room:
        raise RefusalError("its environment is too long")
    if not {*request["cpus"]} <= os.sched_getaffinity(0):
        raise RefusalError("it may use CPUs that the warm process may not")
    for name, (_, most) in request["limits"].items():
        own = resource.getrlimit(getattr(resource, name))[1]
        if os.geteuid() and own != resource.RLIM_INFINITY and not 0 <= most <= own:
            raise RefusalError(f"its {name} is above that of the warm process")


def block(env: Mapping[str, str]) -> bytes:
    """An environment as the kernel keeps it."""
    return b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in env.items())


def _shared(env: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in env.items() if name not in _PER_RANK and not name.startswith(_PER_RANK_PREFIXES)
    }


def _check_words(argv: Sequence[str], folder: str) -> None:
    if len(argv) < 2 or (argv[1] == "-m" and len(argv) < 3):
        raise RefusalError("the program has no script")
    if argv[1] == "-m":
        return
    if argv[1].startswith("-"):
        raise RefusalError(f"the program has the interpreter's option {argv[1]}")
    path = os.path.join(folder, argv[1])  # noqa: PTH118
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            head = file.read(4)
    except OSError as error:
        raise RefusalError(f"{path}: {error.strerror}") from None
    if head[:2] == b"PK" or head[2:4] == b"\r\n" or path.endswith(".pyc"):
        raise RefusalError(f"{path} is not Python source")


def _above_two(fd: int) -> int:
    if fd > 2:
        return fd
    higher = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return higher
