"""Carries the averages between groups on two clusters, with the part of a process group that outer.py and quorum.py need.

It works like torchft's ProcessGroupGloo. But it uses streams through the job's gate instead of connections between nodes, because
the nodes of two clusters rarely reach each other. Sums are formed in the order of the groups, so that all groups get the same bits.

Read here: REPLICA_GROUP_GATE, the gate's HOST:PORT; REPLICA_GROUPS_HERE, the first group of this job and how many it has.
"""

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from gate import HERE, address
from relay import TOKEN
from streams import MessageStream, meet


class Done:
    """A torch Work that is complete from the start."""

    def wait(self, timeout: object = None) -> bool:
        return True


class AcrossGroup:
    """The process group of rank `group_rank` of every replica group. seconds: the time after which a silent group counts as
    lost."""

    def __init__(self, gate: tuple[str, int], token: str, here: range, seconds: float) -> None:
        self._gate, self._token, self._here, self._seconds = gate, token, here, seconds
        self._streams: dict[int, MessageStream] = {}
        self._me, self._size = 0, 1

    def connect(self, name: str, groups: Sequence[int], me: int) -> None:
        """Connect to the same rank of these groups. me: the index of this group. name: of the meeting, the same in all groups."""
        self.abort()
        self._me, self._size = me, len(groups)
        made: dict[int, MessageStream] = {}
        failures: list[BaseException] = []

        def one(other: int) -> None:
            low, high, side = min(me, other), max(me, other), "a" if me < other else "b"
            local = groups[me] in self._here and groups[other] in self._here
            stream = f"{HERE if local else ''}{name}-{low}-{high}"
            try:
                connection = meet(self._gate, self._token, stream, side, self._seconds)
                made[other] = MessageStream(connection, self._token, stream, side, self._seconds)
            except Exception as error:  # noqa: BLE001 - raised below, in the caller's thread
                failures.append(error)

        threads = [
            threading.Thread(target=one, args=(other,), daemon=True) for other in range(len(groups)) if other != me
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._streams = made
        if failures:
            self.abort()
            raise failures[0]

    def size(self) -> int:
        """The number of groups."""
        return self._size

    def errored(self) -> Exception | None:
        """Always None, because this class raises each error at once."""
        return None

    def abort(self) -> None:
        """Close all connections, so that the other groups notice at once."""
        for stream in self._streams.values():
            stream.close()
        self._streams = {}

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], options: object = None) -> Done:
        """outputs[0][i] becomes inputs[0] of group i."""
        data = _bytes(inputs[0])
        received = self._exchange(dict.fromkeys(self._streams, data))
        for other, output in enumerate(outputs[0]):
            output.copy_(inputs[0] if other == self._me else _tensor(received[other], output))
        return Done()

    def allreduce(self, tensors: list[torch.Tensor], options: object = None) -> Done:
        """Sum over the groups, in place: each group sums one part and sends the result to all."""
        (values,) = tensors
        parts = list(values.view(-1).tensor_split(self._size))
        received = self._exchange({other: _bytes(parts[other]) for other in self._streams})
        mine = torch.zeros_like(parts[self._me])
        for other in range(self._size):
            mine += parts[other] if other == self._me else _tensor(received[other], mine)
        sums = self._exchange(dict.fromkeys(self._streams, _bytes(mine)))
        for other, part in enumerate(parts):
            part.copy_(mine if other == self._me else _tensor(sums[other], part))
        return Done()

    def alltoall_base(self, output: torch.Tensor, given: torch.Tensor, *_: Any) -> Done:
        """Row i of `given` goes to group i, and row i of `output` comes from it."""
        received = self._exchange({other: _bytes(given[other]) for other in self._streams})
        for other in range(self._size):
            output[other].copy_(given[other] if other == self._me else _tensor(received[other], output[other]))
        return Done()

    def send(self, tensors: list[torch.Tensor], other: int, tag: int) -> Done:
        """Send to one group. Messages arrive in the order in which they are sent; `tag` is ignored."""
        self._stream(other).send(_bytes(tensors[0]))
        self._stream(other).flush()
        return Done()

    def recv(self, tensors: list[torch.Tensor], other: int, tag: int) -> Done:
        """Receive from one group."""
        tensors[0].copy_(_tensor(self._stream(other).receive(), tensors[0]))
        return Done()

    def _stream(self, other: int) -> MessageStream:
        if other not in self._streams:
            raise ConnectionError("not connected")
        return self._streams[other]

    def _exchange(self, outgoing: Mapping[int, bytes]) -> dict[int, bytes]:
        """Send each group its message and receive one of each."""
        if len(self._streams) != self._size - 1:
            raise ConnectionError("not connected")
        for other, data in outgoing.items():
            self._streams[other].send(data)
        received = {other: self._streams[other].receive() for other in sorted(self._streams)}
        for stream in self._streams.values():
            stream.flush()
        return received


def from_environment(seconds: float) -> AcrossGroup | None:
    """The process group of a training over two clusters; None in any other."""
    if not (gate := os.environ.get("REPLICA_GROUP_GATE")):
        return None
    first, count = map(int, os.environ["REPLICA_GROUPS_HERE"].split())
    return AcrossGroup(address(gate), os.environ[TOKEN], range(first, first + count), seconds)


def _bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().cpu().view(-1)
    return bytes(flat.view(torch.uint8).numpy().tobytes())


def _tensor(data: bytes, like: torch.Tensor) -> torch.Tensor:
    """Bytes as a tensor of the same kind and shape. ValueError for another number of them."""
    if len(data) != like.nbytes:
        raise ValueError(f"{len(data)} bytes came, {like.nbytes} were due")
    if not data:
        return torch.empty_like(like)
    return torch.frombuffer(bytearray(data), dtype=like.dtype).view(like.shape)
