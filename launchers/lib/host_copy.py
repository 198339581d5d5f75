"""A copy of the training state in host memory, made while the next forward and backward pass run.

Only the optimizer's step writes the parameters and the optimizer's state. So a save notes these tensors, and a thread copies them
into buffers that are kept from save to save. The training waits just before its next optimizer step, for what is not copied yet.
All other tensors (a batch norm's statistics, which a forward pass writes) are copied at once.

On a GPU the thread queues the copies into pinned memory on its own stream, and the training's stream waits for them there.
"""

import contextlib
import copy
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

# Below this size a copy on the CPU takes less time than to queue it.
_AT_ONCE_BYTES = 1 << 14

Path = tuple[object, ...]  # the keys that lead to a tensor in the nested state


@dataclass(frozen=True)
class _Place:
    """A tensor's place in the copied state. whole: the sharded tensor, if it is one."""

    path: Path
    whole: DTensor | None


def written_by_step(net: torch.nn.Module, *optimizers: Optimizer) -> Iterator[torch.Tensor]:
    """The tensors that only an optimizer's step writes: the parameters, and the optimizers' state."""
    yield from net.parameters()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]
        for state in optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, torch.Tensor))


class HostCopy:
    """The copies of one rank, one after the other. The training loop calls start() and wait(); the writing thread calls run()."""

    def __init__(self) -> None:
        self._buffers: dict[Path, torch.Tensor] = {}
        self._noted: dict[Path, torch.Tensor] = {}
        self._queue: deque[Path] = deque()
        self._left = 0  # noted tensors that are not copied yet
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._stream: torch.cuda.Stream | None = None

    def start(self, state: Any, later: Iterable[torch.Tensor]) -> Callable[[], Any]:
        """Note a nested state. Returns a function that returns the copy, after run().

        later: the tensors that stay as they are until wait() returns. The others are copied now.
        """
        self._error = None
        storages = {_local(tensor).untyped_storage().data_ptr() for tensor in later}
        places = self._note(state, (), storages)
        if torch.cuda.is_initialized():
            self._stream = self._stream or torch.cuda.Stream()
            self._stream.wait_stream(torch.cuda.current_stream())  # the copies see the last step's values
        self._left = len(self._noted)
        self._queue.extend(self._noted)
        return lambda: self._filled(places)

    def run(self) -> None:
        """Copy what start() noted, and return when the copy is complete."""
        if self._stream is not None:
            # A new thread has GPU 0. Pinned memory would make a context there.
            torch.cuda.set_device(self._stream.device)
        self._drain()
        self._wait()
        if self._stream is not None:
            self._stream.synchronize()
        self._noted = {}  # until here it keeps the memory that is copied from being used for something else
        if self._error is not None:
            raise self._error

    def wait(self) -> None:
        """Return when the noted tensors may be written. Where the thread still copies on the CPU, this copies with it."""
        if self._stream is None:
            self._drain()
        self._wait()
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)

    def _note(self, value: Any, path: Path, later: set[int]) -> Any:
        if isinstance(value, torch.Tensor):
            source = _local(value).detach()
            waits = source.is_cuda or source.nbytes >= _AT_ONCE_BYTES
            if waits and source.untyped_storage().data_ptr() in later:
                self._noted[path] = source
            else:
                self._buffer(path, source).copy_(source, non_blocking=True)
            return _Place(path, value if isinstance(value, DTensor) else None)
        if isinstance(value, dict):
            return {key: self._note(one, (*path, key), later) for key, one in value.items()}
        if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
            return type(value)(self._note(one, (*path, number), later) for number, one in enumerate(value))
        return copy.deepcopy(value)

    def _buffer(self, path: Path, source: torch.Tensor) -> torch.Tensor:
        old = self._buffers.get(path)
        if old is None or old.shape != source.shape or old.dtype != source.dtype:
            self._buffers[path] = torch.empty(source.shape, dtype=source.dtype, pin_memory=source.is_cuda)
        return self._buffers[path]

    def _drain(self) -> None:
        """Copy until nothing is queued."""
        while True:
            try:
                path = self._queue.popleft()
            except IndexError:
                return
            try:
                self._copy(path)
            except BaseException as error:  # noqa: BLE001 - run() raises it, on whichever thread it happened
                self._error = error
            with self._changed:
                self._left -= 1
                self._changed.notify_all()

    def _copy(self, path: Path) -> None:
        source = self._noted[path]
        with torch.cuda.stream(self._stream) if source.is_cuda else contextlib.nullcontext():
            self._buffer(path, source).copy_(source, non_blocking=True)

    def _wait(self) -> None:
        """Wait for the copies that another thread makes."""
        with self._changed:
            self._changed.wait_for(lambda: self._left == 0)

    def _filled(self, value: Any) -> Any:
        if isinstance(value, _Place):
            buffer = self._buffers[value.path]
            # Not from_local(), which would move the copy to the mesh's device.
            return buffer if value.whole is None else DTensor(buffer, value.whole._spec, requires_grad=False)
        if isinstance(value, dict):
            return {key: self._filled(one) for key, one in value.items()}
        if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
            return type(value)(map(self._filled, value))
        return value


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
