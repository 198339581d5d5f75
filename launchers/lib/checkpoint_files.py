"""Files of a checkpoint whose crc32 is computed while they are written, so that they need not be read again for complete.json.

torch.save would compute a second crc32, of each tensor, which takes longer than the write. It is turned off, as torch.load does
not check it. So `unzip -t` finds such a file damaged.
"""

import io
import os
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.filesystem import FileSystem

Sums = dict[Path, list[int]]  # file -> its size in bytes and its crc32

torch.serialization.set_crc32_options(False)


class Summed(io.RawIOBase):
    """A file that is written from its start to its end."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("wb", buffering=0)
        self.size, self.crc = 0, 0

    def writable(self) -> bool:
        """True."""
        return True

    def write(self, data: Any) -> int:
        """Write all of `data`. Returns its size in bytes."""
        view = memoryview(data).cast("B")
        self.crc = zlib.crc32(view, self.crc)
        self.size += len(view)
        rest = view
        while rest:  # Linux writes at most 2 GiB at once
            rest = rest[self._file.write(rest) :]
        return len(view)

    def tell(self) -> int:
        """The number of bytes so far."""
        return self.size

    def fileno(self) -> int:
        """The descriptor, to sync it."""
        return self._file.fileno()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


def save(state: Any, path: Path) -> list[int]:
    """torch.save to the disk itself, not only to its cache. Returns size and crc32."""
    with Summed(path) as file:
        torch.save(state, file)
        os.fsync(file.fileno())
        return [file.size, file.crc]


class _SummedFiles(FileSystem):
    def __init__(self, sums: Sums) -> None:
        self._sums = sums

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[Any, None, None]:
        if mode != "wb":
            with super().create_stream(path, mode) as stream:
                yield stream
            return
        with Summed(Path(path)) as file:
            yield file
            self._sums[Path(path)] = [file.size, file.crc]

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        super().rename(path, new_path)
        if Path(path) in self._sums:
            self._sums[Path(new_path)] = self._sums.pop(Path(path))


def distributed_writer(folder: Path, sums: Sums) -> FileSystemWriter:
    """A writer for torch.distributed.checkpoint. It adds each file of this rank to `sums`."""
    writer = FileSystemWriter(folder)
    writer.fs = _SummedFiles(sums)
    return writer
