"""Images (digits, MNIST files, class folders), batches, and resuming in the middle of an epoch. For text see lib/text.py."""

import gzip
import hashlib
import importlib.util
import itertools
import signal
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset

from . import reports, stop
from .permutation import Permutation
from .ranks import Ranks

Images: TypeAlias = Dataset[tuple[torch.Tensor, torch.Tensor]]
SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp"}


class Loader(DataLoader):  # type: ignore[type-arg]
    """DataLoader whose worker processes block TERM and USR1.

    Slurm signals every process of a step. A worker that dies of the signal would fail the step before its checkpoint is saved.
    """

    def __iter__(self) -> Any:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, stop.SIGNALS)  # the new processes inherit the mask
        try:
            return super().__iter__()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class ResumableSampler(Sampler[int]):
    """The samples of one rank in an epoch: every world size-th of the epoch's order. Call set_epoch(), then skip().

    The samples that do not divide by the world size are left out, so that every rank has as many. No list of samples is kept: their
    number changes neither memory nor the time to start (lib/permutation.py).
    """

    def __init__(self, samples: int, world_size: int, rank: int, *, seed: int) -> None:
        self._samples, self._world_size, self._rank, self._seed = samples, world_size, rank, seed
        self._epoch = self._skipped = 0

    def set_epoch(self, epoch: int) -> None:
        """Use the order of this epoch, counted from 0, from its first sample on."""
        self._epoch, self._skipped = epoch, 0

    def skip(self, samples: int) -> None:
        """Leave out the first `samples` of the epoch, counted over all ranks; a multiple of the world size."""
        self._skipped = samples // self._world_size

    def __iter__(self) -> Iterator[int]:
        # The order of an epoch depends only on the seed and the epoch. So skipping finds the place where a stopped run was.
        first, last = self._skipped * self._world_size, self._samples // self._world_size * self._world_size
        order = Permutation(self._samples, seed=self._seed, epoch=self._epoch)
        return order.each(range(first + self._rank, last, self._world_size))

    def __len__(self) -> int:
        return self._samples // self._world_size - self._skipped


def reported(loader: Iterable[Any]) -> Iterator[Any]:
    """The same batches. The time that a rank waits for a batch is reported as its `data` phase."""
    with reports.progress.phase("data"):
        waiting = iter(loader)
    while True:
        with reports.progress.phase("data"):
            batch = next(waiting, None)
        if batch is None:
            return
        yield batch


def batches(
    dataset: Images,
    micro_batch: int,
    world: Ranks,
    *,
    seed: int,
    samples: int,
    accumulate: int = 1,
    workers: int = 0,
) -> Iterator[list[torch.Tensor]]:
    """This rank's micro-batches, epoch after epoch without end. samples: the number already used, over all ranks.

    An epoch has as many whole batches as the dataset holds, so its samples do not depend on the ranks or on `accumulate`.
    """
    sampler = ResumableSampler(len(dataset), world.ddp_world_size, world.ddp_rank, seed=seed)
    loader = Loader(
        dataset,
        micro_batch,
        sampler=sampler,
        drop_last=True,
        num_workers=workers,
        pin_memory=world.device.type == "cuda",
        generator=torch.Generator().manual_seed(seed),  # its own, else it would draw from the model's generator
    )
    # Samples that all ranks read in one micro-step.
    together = micro_batch * world.ddp_world_size
    usable = len(dataset) // (together * accumulate) * together * accumulate
    if usable == 0:
        raise SystemExit(
            f"{len(dataset)} samples are fewer than a batch: {world.ddp_world_size} ranks x {micro_batch} of a micro-batch x "
            f"{accumulate} accumulation steps."
        )
    while True:
        # The position follows from one number, `samples`, so a resumed run with another number of ranks finds the same
        # place.
        epoch, done = divmod(samples, usable)
        sampler.set_epoch(epoch)
        sampler.skip(done)
        yield from itertools.islice(reported(loader), (usable - done) // together)
        samples = (epoch + 1) * usable


def fixed(
    dataset: Images, windows: int, micro_batch: int, world: Ranks
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """This rank's micro-batches of the first `windows` items: tokens, targets, and weights [micro_batch].

    Each rank gets the same number of micro-batches. Padding in the last ones has weight 0.0, all else 1.0. The choice of items
    depends only on `windows`.
    """
    count = min(windows, len(dataset))
    if count < 1:
        raise SystemExit(f"--test-windows {windows}: at least one is needed for the test.")
    for turn in range(-(-count // (micro_batch * world.ddp_world_size))):
        # In turn n, rank r has items (n * ranks + r) * micro_batch and following: neighbouring ranks read neighbouring
        # items.
        first = (turn * world.ddp_world_size + world.ddp_rank) * micro_batch
        places = range(first, first + micro_batch)
        items = [dataset[place if place < count else 0] for place in places]
        weights = torch.tensor([place < count for place in places], dtype=torch.float64)
        yield torch.stack([one for one, _ in items]), torch.stack([one for _, one in items]), weights


def images_told(folder: Path | None) -> str:
    """A text that identifies the images, for a checkpoint."""
    if folder is None:
        return "scikit-learn's digits"
    return _fingerprint(folder, sorted(path for path in folder.rglob("*") if path.is_file()))


def _fingerprint(folder: Path, files: list[Path]) -> str:
    sizes = [(str(path.relative_to(folder)), path.stat().st_size) for path in files]
    digest = hashlib.sha256(repr(sizes).encode()).hexdigest()
    return f"{len(files)} files of {sum(size for _, size in sizes)} bytes (sha256 {digest[:12]})"


def images(folder: Path | None, size: int = 32) -> tuple[Images, Images, int]:
    """Training set, test set and number of classes. Items are (float32 [channels, height, width] in 0..1, int64 class).

    Without a folder: the 1797 digits of 8 x 8 pixels that scikit-learn ships, one in five for the test. With a folder:
    MNIST's idx files (also gzipped), or train/ and test/ (or val/) with a folder of image files for each class,
    scaled to `size` x `size`.
    """
    if folder is None:
        return digits()
    if next(folder.glob("train-images*idx3-ubyte*"), None):
        return mnist(folder, "train"), mnist(folder, "t10k"), 10
    if (folder / "train").is_dir():
        train = ImageFolder(folder / "train", size)
        test = ImageFolder(folder / ("test" if (folder / "test").is_dir() else "val"), size, train.classes)
        return train, test, len(train.classes)
    raise SystemExit(f"{folder}: neither MNIST files (train-images-idx3-ubyte) nor train/ with a folder a class.")


def digits() -> tuple[Images, Images, int]:
    """The digits of scikit-learn, split the same way on every rank."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - other data does not need scikit-learn

    pixels, classes = load_digits(return_X_y=True)
    # (1797, 64) -> (1797, 1, 8, 8). Pixels are 0 to 16.
    inputs = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    targets = torch.tensor(classes, dtype=torch.int64)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    test, train = order[: len(order) // 5], order[len(order) // 5 :]
    return TensorDataset(inputs[train], targets[train]), TensorDataset(inputs[test], targets[test]), 10


def mnist(folder: Path, part: str) -> Images:
    """One part (train or t10k) of MNIST or of a set in its format (yann.lecun.com/exdb/mnist describes idx files)."""
    inputs = _read_idx(_find_file(folder, f"{part}-images*idx3-ubyte*"))
    targets = _read_idx(_find_file(folder, f"{part}-labels*idx1-ubyte*"))
    # (images, height, width) -> (images, 1, height, width)
    return TensorDataset(inputs[:, None].float() / 255, targets.long())


def _find_file(folder: Path, pattern: str) -> Path:
    path = next(iter(sorted(folder.glob(pattern))), None)
    if path is None:
        raise SystemExit(f"{folder}: no file {pattern}.")
    return path


def _read_idx(path: Path) -> torch.Tensor:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    # Big-endian: two zero bytes, the type of the values (8: unsigned bytes), the number of dimensions; then each dimension
    # as uint32.
    zeros, kind, dimensions = struct.unpack_from(">HBB", data)
    shape = struct.unpack_from(f">{dimensions}I", data, 4)
    start = 4 + 4 * dimensions
    if zeros != 0 or kind != 8 or len(data) - start != torch.Size(shape).numel():
        raise SystemExit(f"{path}: not an idx file of bytes, or cut off.")
    return torch.frombuffer(bytearray(data[start:]), dtype=torch.uint8).view(shape)


class ImageFolder(Images):
    """Image files, in one folder for each class. An image is read when it is needed (by pillow)."""

    def __init__(self, folder: Path, size: int, classes: list[str] | None = None) -> None:
        self.classes = classes or sorted(path.name for path in folder.iterdir() if path.is_dir())
        self._size = size
        self._items = [
            (path, number)
            for number, name in enumerate(self.classes)
            for path in sorted((folder / name).rglob("*"))
            if path.suffix.lower() in SUFFIXES
        ]
        if not self._items:
            raise SystemExit(f"{folder}: no image files in it.")
        if importlib.util.find_spec("PIL") is None:
            raise SystemExit(
                f"{folder}: image files are read by pillow, which is not installed: add it to the image's requirements."
            )

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        from PIL import Image  # noqa: PLC0415 - other data does not need pillow

        path, number = self._items[index]
        with Image.open(path) as image:
            scaled = image.convert("RGB").resize((self._size, self._size))
        pixels = torch.frombuffer(bytearray(scaled.tobytes()), dtype=torch.uint8)
        # pillow gives (height, width, RGB); a convolution takes (RGB, height, width).
        return pixels.view(self._size, self._size, 3).permute(2, 0, 1).float() / 255, torch.tensor(number)
