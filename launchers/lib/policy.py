"""A GPT as a policy: samples completions with their log-probabilities, and computes log-probabilities of given completions.

Rows are padded on the right. Under causal attention padding changes no position before it, so lengths in a batch may differ.
"""

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from . import huggingface, model, vocabulary
from .cache import Cache
from .chats import TokenRow

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Completion:
    """Sampled tokens with their log-probabilities. The last token is the end token, unless the limit came first."""

    tokens: list[int]
    logprobs: list[float]


@torch.inference_mode()
def sample(
    net: model.GPT,
    prompts: list[list[int]],
    *,
    count: int,
    max_tokens: int,
    temperature: float,
    end: int,
    generator: torch.Generator,
) -> list[list[Completion]]:
    """`count` completions for each prompt. Log-probabilities are of the sampling distribution: softmax(logits / temperature)."""
    device = net.embedding.weight.device
    # (prompts, longest), and lengths (prompts,)
    padded, lengths = _padded(prompts, device=device)
    # Keys and values of all tokens so far are kept, so that each token is read once and not again for each token after it.
    cache = Cache(len(net.blocks), lengths, room=max_tokens)
    # A prompt is read once for all its completions. From here on B = prompts * count rows, the completions of a prompt
    # next to each other: logits (B, V).
    scores = net.continued(padded, cache).repeat_interleave(count, 0)
    cache.repeat(count)
    drawn, chosen = [], []
    running = torch.ones(len(scores), dtype=torch.bool, device=device)
    for position in range(max_tokens):
        # (B, V), in float32: probabilities in bfloat16 have only two to three digits.
        logprobs = functional.log_softmax(scores.float() / temperature, dim=-1)
        # (B, 1)
        tokens = torch.multinomial(logprobs.exp(), 1, generator=generator)
        # Sampling continues for the whole batch. -1 marks tokens of completions that have already ended.
        drawn.append(tokens[:, 0].where(running, -1))
        chosen.append(logprobs.gather(1, tokens)[:, 0])
        running &= tokens[:, 0] != end
        if position == max_tokens - 1 or not running.any():
            break
        scores = net.continued(tokens, cache)
    every = []
    # (B, drawn tokens) each.
    for row, row_logprobs in zip(torch.stack(drawn, 1).tolist(), torch.stack(chosen, 1).tolist(), strict=True):
        tokens = [token for token in row if token >= 0]
        every.append(Completion(tokens=tokens, logprobs=row_logprobs[: len(tokens)]))
    return [every[first : first + count] for first in range(0, len(every), count)]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Prompts with completions as tensors, (B, T) each. tokens: padded. targets: tokens shifted by one. mask: 1.0 where a target
    is a token of the completion, else 0.0. documents: of packed(), the number of the row that a token is of."""

    tokens: torch.Tensor
    targets: torch.Tensor
    mask: torch.Tensor
    documents: torch.Tensor | None = None

    def spread(self, values: list[list[float]]) -> torch.Tensor:
        """Place the numbers of each completion's tokens where the mask is 1. 0.0 elsewhere."""
        placed = torch.zeros_like(self.mask)
        placed[self.mask.bool()] = torch.tensor([v for row in values for v in row], device=placed.device)
        return placed


def batch(prompts: list[list[int]], completions: list[list[int]], device: torch.device) -> Batch:
    """A batch of prompts and completions. Row i is prompts[i] followed by completions[i]."""
    return rows([answered(*pair) for pair in zip(prompts, completions, strict=True)], device)


def answered(prompt: list[int], completion: list[int]) -> TokenRow:
    """A row of a prompt and its completion. The loss counts the completion."""
    return TokenRow(tokens=prompt + completion, mask=[0] * len(prompt) + [1] * len(completion))


def rows(given: list[TokenRow], device: torch.device) -> Batch:
    """A batch of rows."""
    # (B, T + 1): the inputs are the first T tokens, the targets the last T.
    tokens, _ = _padded([row.tokens for row in given], device=device)
    mask, _ = _padded([row.mask for row in given], device=device)
    return Batch(tokens=tokens[:, :-1], targets=tokens[:, 1:], mask=mask[:, 1:].float())


def packed(given: list[TokenRow], device: torch.device, *, most: int) -> Batch:
    """A batch of rows, several of them one after another in each row of the batch, which has `most` tokens at most.

    The longest first, each where it first fits, so that little is padded. A row's last token is a target only, as in rows().
    """
    bins: list[list[TokenRow]] = []
    room: list[int] = []
    for row in sorted(given, key=lambda row: len(row.tokens), reverse=True):
        length = len(row.tokens) - 1
        place = next((number for number, left in enumerate(room) if left >= length), len(bins))
        if place == len(bins):
            bins.append([])
            room.append(most)
        bins[place].append(row)
        room[place] -= length
    tokens, _ = _padded([[one for row in of for one in row.tokens[:-1]] for of in bins], device=device)
    targets, _ = _padded([[one for row in of for one in row.tokens[1:]] for of in bins], device=device)
    mask, _ = _padded([[one for row in of for one in row.mask[1:]] for of in bins], device=device)
    # From 1: padding is a document of its own, 0.
    documents, _ = _padded(
        [[number for number, row in enumerate(of, 1) for _ in row.tokens[1:]] for of in bins], device=device
    )
    return Batch(tokens=tokens, targets=targets, mask=mask.float(), documents=documents)


def logprobs(scores: torch.Tensor, rows: Batch) -> torch.Tensor:
    """The log-probability of each target, (B, T), from logits (B, T, V)."""
    return -functional.cross_entropy(scores.flatten(0, 1), rows.targets.flatten(), reduction="none").view_as(rows.mask)


def entropy(scores: torch.Tensor) -> torch.Tensor:
    """The entropy of the choice of each token in nats, (B, T), from logits (B, T, V)."""
    logprobs = functional.log_softmax(scores, dim=-1)
    return -(logprobs.exp() * logprobs).sum(-1)


def masked_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The mean of the values where the mask is 1."""
    return (values * mask).sum() / mask.sum()


def described(net: model.GPT) -> dict[str, int]:
    """The model's shape as plain numbers, for a file or a message."""
    size = {"layers", "heads", "dim", "context", "vocabulary"}
    usual = {field.name: field.default for field in fields(net.shape) if field.name not in size}
    return {name: value for name, value in asdict(net.shape).items() if name in size or value != usual[name]}


def built(shape: dict[str, int]) -> model.GPT:
    """A new model of a shape that `described` returned."""
    return model.GPT(model.GPTShape(**shape))


def begun(checkpoint: Path | None, shape: model.GPTShape) -> model.GPT:
    """The policy that training starts from: a checkpoint's, whatever its shape, or without a checkpoint a new one of this shape.

    checkpoint: of launchers/rl or launchers/sft, or a Hugging Face folder (lib/huggingface.py). With a checkpoint, only the context
    and the vocabulary of `shape` are used, as the minimum that the data need.
    """
    if checkpoint is None:
        return model.GPT(replace(shape, vocabulary=vocabulary.rounded(shape.vocabulary)))
    if (checkpoint / "config.json").is_file():
        return _imported(checkpoint, shape)
    state = _loaded(checkpoint)
    net = built(state["shape"])
    if shape.vocabulary > net.shape.vocabulary:
        raise SystemExit(
            f"{checkpoint}: it knows {net.shape.vocabulary} tokens, and the data have {shape.vocabulary}: another --tokenizer?"
        )
    net.load_state_dict(state["model"])
    return net


@torch.no_grad()
def _imported(folder: Path, wanted: model.GPTShape) -> model.GPT:
    net = model.GPT(huggingface.shape(folder, context=wanted.context, vocabulary=wanted.vocabulary), drawn=False)
    read = huggingface.reader(folder, net.shape)
    for name, parameter in net.named_parameters():
        parameter.copy_(read(name, 0, len(parameter)))
    return net


def _loaded(checkpoint: Path) -> dict[str, Any]:
    """state.pt of a checkpoint folder of launchers/rl or launchers/sft, or of the newest checkpoint in a folder of checkpoints."""
    pointer = checkpoint / "latest"
    folder = checkpoint / pointer.read_text(encoding="utf-8").strip() if pointer.exists() else checkpoint
    if not (folder / "state.pt").exists():
        raise SystemExit(
            f"{checkpoint}: neither a checkpoint (state.pt), nor a folder of checkpoints (latest), nor a model (config.json)."
        )
    state = torch.load(folder / "state.pt", map_location="cpu", weights_only=True)
    if not isinstance(state, dict) or not {"model", "shape"} <= state.keys():
        raise SystemExit(f"{folder / 'state.pt'}: not of launchers/rl or launchers/sft: model and shape are not in it.")
    return state


def _padded(rows: list[list[int]], *, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens, padded to (B, longest), and the length of each row before padding, (B,)."""
    lengths = [len(row) for row in rows]
    width = max(lengths)
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=device)
    return tokens, torch.tensor(lengths, device=device)
