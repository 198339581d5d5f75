"""The order of an epoch's samples: a shuffle on any number of ranks and from any position, whatever the number of samples."""

import argparse
import collections
import importlib
import itertools
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LAUNCHERS = Path(__file__).parents[2] / "launchers"
pytestmark = [pytest.mark.smoke, pytest.mark.timeout(120)]
# The smallest, squares and their neighbours (at which the network gets a digit more), and primes.
SIZES = [*range(1, 31), 36, 37, 48, 49, 50, 63, 64, 65, 97, 99, 100, 101, 127, 128, 129, 255, 256, 257, 997, 1000]
WORLDS = (1, 2, 3, 8)
LARGE = 100_000_000


@pytest.fixture(autouse=True)
def _lib_of_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(LAUNCHERS))


def lib(name: str) -> Any:
    return importlib.import_module(f"lib.{name}")


def epoch_of(size: int, world: int, *, epoch: int = 0, skip: int = 0, seed: int = 5) -> list[int]:
    """The samples of all ranks from `skip` on, in the order in which the ranks together read them."""
    of_ranks = []
    for rank in range(world):
        sampler = lib("data").ResumableSampler(size, world, rank, seed=seed)
        sampler.set_epoch(epoch)
        sampler.skip(skip)
        of_ranks.append([*sampler])
        assert len(sampler) == len(of_ranks[-1])
    return [number for turn in zip(*of_ranks, strict=True) for number in turn]


def test_every_sample_comes_once_in_an_epoch_on_any_number_of_ranks() -> None:
    assert len(SIZES) == 50
    for size, world in itertools.product(SIZES, WORLDS):
        whole = epoch_of(size, 1)
        assert sorted(whole) == list(range(size))
        # The same order on every layout, without the samples at its end that do not divide by the ranks.
        assert epoch_of(size, world) == whole[: size // world * world]


def test_a_resume_continues_at_the_sample_from_any_position() -> None:
    size = 1009
    whole = epoch_of(size, 1, epoch=3)
    for world in WORLDS:
        end = size // world * world
        for number in range(50):
            done = number * end // 50 // world * world
            assert epoch_of(size, world, epoch=3, skip=done) == whole[done:end]


def test_batches_resume_in_any_epoch_on_another_number_of_ranks() -> None:
    """data.batches, which the programs call: 24 samples a step of 1,000, so that 16 are left out in each epoch."""
    import torch

    data, ranks = lib("data"), lib("ranks")
    numbers = torch.utils.data.TensorDataset(torch.arange(1000))
    alone = {"ddp_local_rank": 0, "nodes": 1, "device": torch.device("cpu"), "backend": "gloo", "control": None}

    def steps(world: int, samples: int, count: int) -> list[list[int]]:
        of_ranks = [
            data.batches(
                numbers,
                24 // world,
                ranks.Ranks(ddp_rank=rank, ddp_world_size=world, **alone),
                seed=3,
                samples=samples,
            )
            for rank in range(world)
        ]
        return [sorted(int(one) for stream in of_ranks for one in next(stream)[0]) for _ in range(count)]

    whole = steps(1, 0, 100)
    for place in range(0, 41):
        assert not set(whole[place]) & {number for step in whole[:place] for number in step}
    for number in range(50):
        world = WORLDS[number % 4]
        assert steps(world, 24 * 2 * number, 2) == whole[2 * number :][:2]


def test_seeds_and_epochs_have_other_orders_and_all_orders_are_about_equally_frequent() -> None:
    orders = {(seed, epoch): tuple(epoch_of(50, 1, seed=seed, epoch=epoch)) for seed in range(9) for epoch in range(9)}
    assert len(set(orders.values())) == 81
    size, epochs = 4, 960
    counted = collections.Counter(tuple(epoch_of(size, 1, epoch=epoch)) for epoch in range(epochs))
    expected = epochs / math.factorial(size)
    squares = sum((counted[one] - expected) ** 2 / expected for one in itertools.permutations(range(size)))
    # Chi-square over its degrees of freedom is about 1 for a fair shuffle. With too few rounds it is 5 to 30.
    assert squares / (math.factorial(size) - 1) < 2


def test_neighbours_of_a_large_order_are_not_neighbours_in_the_data() -> None:
    found = [*itertools.islice(lib("permutation").Permutation(LARGE, seed=1, epoch=0).each(range(LARGE)), 20_000)]
    # Mean distance of two random numbers below 1: 1/3, with a standard deviation of 0.24 / sqrt(20,000) = 0.0017.
    far = sum(abs(one - two) for one, two in itertools.pairwise(found)) / len(found) / LARGE
    assert abs(far - 1 / 3) < 0.01
    parts = collections.Counter(number * 100 // LARGE for number in found)
    assert sum((parts[part] - 200) ** 2 / 200 for part in range(100)) / 99 < 1.6


# Reads 100 batches of 8 samples from the middle of an epoch of 10,000 samples, then from one of 100 million. Prints by how much the
# second raised the largest memory that the process ever had.
PROBE = """
import itertools, json, resource, sys
import torch
from lib import data, ranks

class Counted(torch.utils.data.Dataset):
    def __init__(self, size):
        self.size, self.read = size, []
    def __len__(self):
        return self.size
    def __getitem__(self, number):
        self.read.append(number)
        return torch.tensor(number)

alone = {"ddp_local_rank": 0, "nodes": 1, "device": torch.device("cpu"), "backend": "gloo", "control": None}
world = ranks.Ranks(ddp_rank=3, ddp_world_size=8, **alone)
def measured(size):
    samples = Counted(size)
    batches = data.batches(samples, 8, world, seed=1, samples=size // 64 // 2 * 64)
    found = {int(one) for batch in itertools.islice(batches, 100) for one in batch}
    return len(found), len(samples.read), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
few, many = measured(10_000), measured(int(sys.argv[1]))
print(json.dumps({"few": few[:2], "many": many[:2], "kib": many[2] - few[2]}))
"""


def test_a_hundred_million_samples_need_no_more_memory_than_ten_thousand() -> None:
    """Of the whole process. An order of 100 million that is kept is 800 MB as int64, and 4 GB as a list."""
    argv = [sys.executable, "-c", PROBE, str(LARGE)]
    done = subprocess.run(argv, env={"PYTHONPATH": str(LAUNCHERS)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    used = json.loads(done.stdout)
    assert used["few"][1] == 800
    assert used["many"] == [800, 800]
    assert used["kib"] < 8192  # what the allocator may take in between


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers that each call of the network computes."""
    counts: list[int] = []
    permutation = lib("permutation").Permutation
    rounds = permutation._rounds

    def counted(self: Any, numbers: Any) -> Any:
        counts.append(len(numbers))
        return rounds(self, numbers)

    monkeypatch.setattr(permutation, "_rounds", counted)
    return counts


def test_the_work_of_a_start_does_not_grow_with_the_samples(computed: list[int]) -> None:
    """Counted: the numbers that are computed for the first 1,000 samples of a rank in the middle of an epoch."""
    work = {}
    for size in (100_000, LARGE):
        sampler = lib("data").ResumableSampler(size, 8, 3, seed=1)
        sampler.skip(size // 2)
        computed.clear()
        assert len({*itertools.islice(sampler, 1000)}) == 1000
        work[size] = sum(computed)
    assert work[LARGE] <= work[100_000] <= 1.05 * 4096


def chats_of(size: int) -> Any:
    made = lib("chat_dataset").ChatDataset.__new__(lib("chat_dataset").ChatDataset)
    made.counts = {"train": size, "validation": 1}
    return made


def test_a_step_of_chats_computes_its_own_rows_only(computed: list[int]) -> None:
    """It shuffled the whole epoch at each step on each rank."""
    for size in (1000, 1_000_000):
        computed.clear()
        found = [*chats_of(size)._order(640, 64, 7)]
        assert len(set(found)) == 64
        # Every number, and those few again that became a pair beyond the size.
        assert sum(computed) <= 2 * 64


@pytest.mark.parametrize("count", [1, 7, 30, 64])
def test_chats_come_once_in_each_epoch_whatever_the_batch(count: int) -> None:
    """Steps that end in the middle of an epoch, and batches that are larger than an epoch."""
    size, epochs = 30, 14
    chats = chats_of(size)
    found = [row for step in range(size * epochs // count) for row in chats._order(step * count, count, 7)]
    for first in range(0, len(found) - size + 1, size):
        assert sorted(found[first : first + size]) == list(range(size))
    assert len({tuple(found[first : first + size]) for first in range(0, len(found) - size + 1, size)}) > 1


@pytest.mark.parametrize("then", [{}, {"order": "permutation 0"}])
def test_a_checkpoint_of_another_order_is_refused(then: dict[str, str]) -> None:
    """Its position is one in another order: some samples of the epoch would come twice, others never."""
    resume = lib("resume")
    now = resume.told("fsdp/train.py", argparse.Namespace(lr=0.1))
    older = {key: value for key, value in now.items() if key != "order"} | then
    refusal, changed = resume._compare(Path("step-1"), older, now, resume._MUST_BE_EQUAL)
    assert refusal.startswith("step-1: its run read the samples in the order of another version of the kit")
    assert "\n  try: " in refusal
    assert changed == []
    # A program that reads no samples itself continues.
    alone = resume.told("rl/trainer.py", argparse.Namespace(lr=0.1), order=None, weight_decay_on=None)
    assert resume._compare(Path("step-1"), {**alone, **then}, alone, resume._MUST_BE_EQUAL) == (None, [])


def test_class_folders_without_pillow_end_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first image file is read in a worker of the DataLoader, after the ranks have met."""
    (tmp_path / "black").mkdir()
    (tmp_path / "black" / "0.png").write_bytes(b"")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(SystemExit, match="read by pillow, which is not installed: add it to the image's requirements"):
        lib("data").ImageFolder(tmp_path, 8)
