"""Averages over replica groups: in float32; or, with error feedback, quantised to 8, 4 or 2 bits, or only the largest values.

A quantised average takes two steps, so that its traffic does not grow with the number of groups. First, each group sends to
every other group the part that this other group averages, quantised. Then each group sends out the average of its part,
quantised again. All groups unpack the same bytes, so their results are equal to the last bit.

With `top_k` each group sends its values of largest magnitude, with their positions, to all others. `top_k` is their share.

The error of rounding or leaving out is kept and added the next time (error feedback: Seide et al., "1-bit stochastic gradient
descent", Interspeech 2014; for the pseudo-gradients of DiLoCo: "MuLoCo", arXiv 2505.23725).
"""

import math

import torch
from across import AcrossGroup
from torch.distributed.distributed_c10d import AllgatherOptions, AllreduceOptions, AllToAllOptions
from torchft.process_group import ProcessGroup
from wire import traffic

BLOCK = 256  # values that share one float32 scale, which adds 1/8 bit to each value
# The step between levels, in standard deviations of a block. The steps with the least loss for normal values are smaller (0.335
# and 0.996: Joel Max, "Quantizing for minimum distortion", IRE Transactions on Information Theory 6, 1960). Wider ones are
# better here: values beyond the last level are made up for only in later rounds, and pseudo-gradients have longer tails.
STEP = {4: 0.5, 2: 1.5}


def pack(values: torch.Tensor, bits: int) -> torch.Tensor:
    """float32 [rows, n], n a multiple of BLOCK -> uint8 [rows, bytes]: scales, then codes, several to a byte."""
    rows = len(values)
    blocks = values.view(rows, -1, BLOCK)
    if bits == 8:  # 255 levels up to the largest value of the block
        # blocks (rows, n / 256, 256), scale (rows, n / 256, 1), codes (rows, n * bits / 8 bytes, codes in a byte)
        scale = blocks.abs().amax(dim=-1, keepdim=True) / 127
    else:
        scale = blocks.square().mean(dim=-1, keepdim=True).sqrt() * STEP[bits]
    # A block of zeros has scale 0. where() replaces the NaN of 0 / 0.
    steps = torch.where(scale > 0, blocks / scale, 0.0)
    # 8 bits: levels -127 to 127, and 0 is one of them. Fewer bits: an even number of levels around 0, -1.5 to 1.5 for 2 bits.
    offset = 128.0 if bits == 8 else 2 ** (bits - 1) - 0.5
    codes = (steps + offset).round().clamp(0, 2**bits - 1).to(torch.uint8).view(rows, -1, 8 // bits)
    packed = torch.zeros_like(codes[..., 0])
    for place in range(8 // bits):
        packed |= codes[..., place] << (place * bits)  # the first code in the lowest bits
    return torch.cat((scale.reshape(rows, -1).view(torch.uint8), packed), dim=1)  # (rows, 4 n / 256 + n bits / 8)


def unpack(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """The output of pack() -> float32 [rows, n]."""
    rows, size = packed.shape
    blocks = size // (4 + BLOCK * bits // 8)  # of a block: the 4 bytes of its scale, and its codes
    scale = packed[:, : 4 * blocks].contiguous().view(torch.float32).view(rows, blocks, 1)
    codes = packed[:, 4 * blocks :]
    # (rows, bytes) -> (rows, bytes, codes in a byte)
    spread = torch.stack([(codes >> (place * bits)) & (2**bits - 1) for place in range(8 // bits)], dim=-1)
    offset = 128.0 if bits == 8 else 2 ** (bits - 1) - 0.5
    return ((spread.view(rows, blocks, BLOCK).float() - offset) * scale).view(rows, -1)


class Average:
    """The weighted mean of a vector over the groups in the process group `pg`.

    `sent` counts the bytes that this rank sends, as the usual ring algorithms need them, without headers.
    """

    def __init__(self, pg: ProcessGroup | AcrossGroup, bits: int = 32, top_k: float = 0.0) -> None:
        """top_k: the share of the values to send; 0: all, with `bits` each."""
        self._pg, self._bits, self._top_k = pg, bits, top_k
        self.sent = 0.0
        self.residuals: dict[int, torch.Tensor] = {}  # fragment -> values that are still to be sent
        self._next: dict[int, torch.Tensor] = {}

    def __call__(self, fragment: int, values: torch.Tensor, weights: list[int], me: int) -> torch.Tensor:
        """The mean of `values` over the groups, by their weights. me: this group's place in `weights`."""
        values = values if weights[me] else torch.zeros_like(values)
        if self._top_k:
            return self._largest(fragment, values, weights, me)
        if self._bits == 32:
            # An all-reduce of the whole vector: each group gets the sum, and divides it by the number of groups
            # that count.
            total = values.clone()
            if len(weights) > 1:
                with traffic():
                    self._pg.allreduce([total], AllreduceOptions()).wait()
                self.sent += 2 * (len(weights) - 1) / len(weights) * total.nbytes
            return total.div_(sum(weights))
        return self._quantised(fragment, values, weights, me)

    def commit(self) -> None:
        """Accept the last average, which all groups have used. Its residuals count from now."""
        self.residuals |= self._next
        self._next = {}

    def _quantised(self, fragment: int, values: torch.Tensor, weights: list[int], me: int) -> torch.Tensor:
        groups, total = len(weights), sum(weights)
        # Error feedback: add what earlier averages of this fragment left out.
        residual = self.residuals.get(fragment, torch.zeros_like(values))
        wanted = values + residual if weights[me] else values
        # Values that each group averages, rounded up to whole blocks: (groups, part).
        part = math.ceil(len(values) / groups / BLOCK) * BLOCK
        padded = torch.zeros(groups, part, device=values.device)
        padded.view(-1)[: len(values)] = wanted

        packed = pack(padded, self._bits)
        lost = padded - unpack(packed, self._bits)  # (groups, part): the error of rounding, sent next time
        received = torch.empty_like(packed)
        if groups > 1:
            with traffic():
                # All-to-all: row i goes to group i. Afterwards row i is group i's version of the part that this
                # group averages.
                self._pg.alltoall_base(received, packed, [], [], AllToAllOptions()).wait()
        else:
            received.copy_(packed)
        weight = torch.tensor(weights, dtype=torch.float32, device=values.device)[:, None]  # (groups, 1)
        # (1, part)
        mean = (unpack(received, self._bits) * weight).sum(dim=0, keepdim=True) / total

        packed = pack(mean, self._bits)
        # An all-gather: every group gets all averaged parts.
        parts = self._gathered(packed, groups)
        self.sent += 2 * (groups - 1) * packed.nbytes

        # This group also makes up for rounding the mean that it sent out. That error is in the sum, hence times `total`.
        lost = lost if weights[me] else torch.zeros_like(lost)
        lost[me] += (mean - unpack(packed, self._bits))[0] * total
        # Not in self.residuals yet: a failed average is repeated with the old ones. commit() takes these over.
        self._next[fragment] = lost.view(-1)[: len(values)] + (0 if weights[me] else residual)
        return unpack(torch.cat(parts), self._bits).view(-1)[: len(values)].clone()

    def _largest(self, fragment: int, values: torch.Tensor, weights: list[int], me: int) -> torch.Tensor:
        residual = self.residuals.get(fragment, torch.zeros_like(values))
        wanted = values + residual if weights[me] else values
        count = max(1, round(self._top_k * len(values)))
        places = wanted.abs().topk(count).indices  # (count,)
        # (2, count): positions as int32, and the bits of the float32 values, 8 bytes for each value sent.
        packed = torch.stack((places.to(torch.int32), wanted[places].view(torch.int32)))
        mean = torch.zeros_like(values)
        # Add in the same order everywhere, so that all groups get the same bits.
        for weight, theirs in zip(weights, self._gathered(packed, len(weights)), strict=True):
            mean.index_add_(0, theirs[0].long(), theirs[1].contiguous().view(torch.float32), alpha=weight)
        self.sent += (len(weights) - 1) * packed.nbytes
        self._next[fragment] = wanted.index_fill(0, places, 0.0) if weights[me] else residual
        return mean.div_(sum(weights))

    def _gathered(self, packed: torch.Tensor, groups: int) -> list[torch.Tensor]:
        """`packed` of every group."""
        if groups == 1:
            return [packed]
        parts = [torch.empty_like(packed) for _ in range(groups)]
        with traffic():
            self._pg.allgather([parts], [packed], AllgatherOptions()).wait()
        return parts
