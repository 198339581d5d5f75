"""Keys and values of the tokens that a GPT has read: with them, the next token of a row costs one token and not the whole row."""

import torch

from .model import Angles, KeysAndValues

_LEAST_GROWTH = 64  # tokens


class Cache:
    """Keys and values of rows of different lengths, one pair of tensors (B, K, places, D) for each block.

    The first tokens are the prompts, (B, T), padded on the right to the longest. Then each row gets one token at a time, (B, 1), at
    its own place: after its last token, over its padding. No row attends to the places after its newest token.
    """

    def __init__(self, blocks: int, lengths: torch.Tensor, *, room: int) -> None:
        """lengths: of the prompts, (B,). room: tokens that a row gets after its prompt, at most."""
        self._lengths, self._room = lengths, room
        self._kept: list[tuple[torch.Tensor, torch.Tensor] | None] = [None] * blocks
        self._width = 0  # places that rows use, also those of padding: the longest row's length
        self._most = 0

    def repeat(self, count: int) -> None:
        """Each row `count` times, next to each other."""
        self._lengths = self._lengths.repeat_interleave(count)
        self._kept = [
            kept and (kept[0].repeat_interleave(count, 0), kept[1].repeat_interleave(count, 0)) for kept in self._kept
        ]

    def begin(self, tokens: torch.Tensor, angles: Angles) -> tuple[Angles, torch.Tensor | None]:
        """Count the next tokens. Returns the angles of their places, and the mask of what they attend to, for the blocks."""
        is_first = not self._width
        self._width += tokens.shape[1]
        if self._width > len(angles.cos):
            # Checked here, because an index beyond the end ends the process on a GPU.
            raise ValueError(f"a row has {self._width} tokens, and the model's context is {len(angles.cos)}")
        if is_first:
            self._most = self._width + self._room
            return angles.first(self._width), None
        places = self._lengths  # (B,): where each row's token goes
        self._lengths = self._lengths + 1
        seen = torch.arange(self._width, device=places.device) <= places[:, None]  # (B, places)
        return angles.at(places), seen[:, None, None]

    def of(self, block: int) -> KeysAndValues:
        """The function by which a block exchanges the new keys and values for those of all tokens."""

        def exchanged(k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            kept = self._kept[block]
            if kept is None:
                self._kept[block] = k, v
                return k, v
            self._kept[block] = kept = self._grown(kept[0]), self._grown(kept[1])
            rows, places = torch.arange(len(k), device=k.device), self._lengths - 1
            for whole, new in zip(kept, (k, v), strict=True):
                whole[rows, :, places] = new[:, :, 0]
            return kept[0][:, :, : self._width], kept[1][:, :, : self._width]

        return exchanged

    def last(self, x: torch.Tensor) -> torch.Tensor:
        """The vectors of each row's newest token, (B, C), out of those of the tokens that came last, (B, T, C)."""
        return x[:, 0] if x.shape[1] < self._width else x[torch.arange(len(x), device=x.device), self._lengths - 1]

    def _grown(self, kept: torch.Tensor) -> torch.Tensor:
        """The same with more places where the newest has none. By half, so that few steps copy what is kept."""
        places = kept.shape[2]
        if self._width <= places:
            return kept
        more = min(max(places // 2, _LEAST_GROWTH), self._most - places)
        return torch.cat((kept, kept.new_zeros(*kept.shape[:2], more, kept.shape[3])), 2)
