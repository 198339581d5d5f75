"""The order of an epoch: a seeded shuffle of the numbers below a size that is computed for each place and kept nowhere.

Memory and work do not grow with the size, and any place can be asked for: a resumed run begins in the middle of an epoch at once.

The numbers are pairs of digits in base `side`. Each round of a Feistel network adds a hash of one digit to the other one, and swaps
them, which can be undone, so that no number comes twice (Luby and Rackoff 1988). There are a few pairs more than numbers: a place
that becomes one of those is sent through the rounds again until it is a number (cycle walking, Black and Rogaway 2002).
"""

import hashlib
import math
from collections.abc import Iterator

import torch

ORDER = "permutation 1"  # in a checkpoint: the order in which its run reads samples
_ROUNDS = 8
# With fewer digits, not all shuffles of three to five numbers would be about equally frequent.
_SMALLEST_SIDE = 4
# The first hexadecimal digits of pi and e, made odd. Times 32 bits they stay below 2**63, so that int64 is enough.
_PI, _E, _BITS = 0x3243F6A9, 0x2B7E1517, 0xFFFFFFFF
_BLOCK = 4096  # places that are computed together: 100 kB


class Permutation:
    """A shuffle of the numbers below `size`, another one for each seed and epoch, the same on every machine."""

    def __init__(self, size: int, *, seed: int, epoch: int) -> None:
        self._size = size
        self._side = max(_SMALLEST_SIDE, math.isqrt(max(size - 1, 0)) + 1)
        drawn = hashlib.blake2b(f"{seed} {epoch}".encode(), digest_size=4 * _ROUNDS).digest()
        self._keys = [int.from_bytes(drawn[first : first + 4], "big") for first in range(0, len(drawn), 4)]

    def at(self, places: torch.Tensor) -> torch.Tensor:
        """The numbers at these places of the shuffle, both int64 on the CPU, [count]."""
        numbers = self._rounds(places)
        while (beyond := numbers >= self._size).any():
            numbers[beyond] = self._rounds(numbers[beyond])
        return numbers

    def each(self, places: range) -> Iterator[int]:
        """The numbers at these places, computed in blocks as they are read."""
        for first in range(0, len(places), _BLOCK):
            block = places[first : first + _BLOCK]
            yield from self.at(torch.arange(block.start, block.stop, block.step)).tolist()

    def _rounds(self, numbers: torch.Tensor) -> torch.Tensor:
        left, right = numbers // self._side, numbers % self._side
        for key in self._keys:
            left, right = right, (left + _hashed(right, key)) % self._side
        return left * self._side + right


def _hashed(digits: torch.Tensor, key: int) -> torch.Tensor:
    """32 bits that depend on each bit of a digit, which is below 2**32, and of the key."""
    mixed = digits ^ key
    mixed = ((mixed ^ (mixed >> 16)) * _PI) & _BITS
    mixed = ((mixed ^ (mixed >> 15)) * _E) & _BITS
    return mixed ^ (mixed >> 16)
