"""Sampling with kept keys and values: the same tokens as without, at one forward token for each new token."""

import dataclasses
import importlib
from pathlib import Path
from typing import Any

import pytest

LAUNCHERS = Path(__file__).parents[2] / "launchers"
pytestmark = [pytest.mark.smoke, pytest.mark.timeout(120)]
PROMPTS = [[5, 6, 7], [9], [1, 2, 3, 4, 5, 6, 7, 8]]
SHAPES = {
    "plain": {},
    "grouped": {"kv_heads": 2, "qkv_bias": True},
    "norms": {"kv_heads": 1, "head_dim": 16, "head_norms": True, "rope_scaling": (8.0, 1.0, 4.0, 32.0)},
}


@pytest.fixture(autouse=True)
def _lib_of_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(LAUNCHERS))


def lib(name: str) -> Any:
    return importlib.import_module(f"lib.{name}")


def gpt(context: int = 64, **shape: Any) -> Any:
    """A model whose choices differ from token to token: its last matrix is drawn forty times as wide as usual."""
    import torch

    torch.manual_seed(3)
    model = lib("model")
    net = model.GPT(model.GPTShape(layers=2, heads=4, dim=32, context=context, vocabulary=64, **shape)).eval()
    with torch.no_grad():
        net.head.weight.mul_(40)
    return net


def uncached(
    net: Any, prompts: list[list[int]], *, count: int, max_tokens: int, seed: int
) -> tuple[list[list[int]], Any]:
    """Tokens (B, max_tokens), and the logits that they were drawn from, (B, max_tokens, V): the whole row read again for each."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    rows = [list(prompt) for prompt in prompts for _ in range(count)]
    starts = [len(row) for row in rows]
    scores = []
    for _ in range(max_tokens):
        last = torch.tensor([len(row) - 1 for row in rows])
        padded = torch.tensor([row + [0] * (int(last.max()) + 1 - len(row)) for row in rows])
        with torch.no_grad():
            scores.append(net(padded)[torch.arange(len(rows)), last])
        drawn = torch.multinomial(scores[-1].log_softmax(-1).exp(), 1, generator=generator)[:, 0].tolist()
        for row, token in zip(rows, drawn, strict=True):
            row.append(token)
    return [row[start:] for row, start in zip(rows, starts, strict=True)], torch.stack(scores, 1)


def test_the_tokens_and_logits_are_those_of_rows_that_are_read_whole() -> None:
    """Prompts of different lengths, several completions of each, and enough tokens that the kept places grow twice."""
    import torch

    net, count, most = gpt(128, kv_heads=2), 2, 70
    wanted, scores = uncached(net, PROMPTS, count=count, max_tokens=most, seed=11)
    made = lib("policy").sample(
        net,
        PROMPTS,
        count=count,
        max_tokens=most,
        temperature=1.0,
        end=-1,
        generator=torch.Generator().manual_seed(11),
    )
    found = [completion for of_prompt in made for completion in of_prompt]
    assert [completion.tokens for completion in found] == wanted
    assert len({tuple(row) for row in wanted}) == len(wanted)
    logprobs = scores.log_softmax(-1).gather(2, torch.tensor(wanted)[:, :, None])[:, :, 0]
    assert torch.tensor([completion.logprobs for completion in found]).sub(logprobs).abs().max() < 1e-5


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_logits_of_each_token_are_equal_to_a_millionth(shape: dict[str, Any]) -> None:
    """In float64, where a wrong mask or position cannot hide in rounding, and in float32 to a millionth of the largest logit."""
    import torch

    for kind, bound in ((torch.float64, 1e-6), (torch.float32, 1e-6)):
        net = gpt(**shape).to(kind)
        lengths = torch.tensor([len(prompt) for prompt in PROMPTS])
        tokens = torch.randint(64, (len(PROMPTS), 40), generator=torch.Generator().manual_seed(1))
        cache = lib("cache").Cache(2, lengths, room=32)
        with torch.no_grad():
            found = [net.continued(tokens[:, :8], cache)]
            for number in range(20):
                found.append(net.continued(tokens[torch.arange(3), lengths + number][:, None], cache))
            for number, scores in enumerate(found):
                for row, length in enumerate(lengths.tolist()):
                    wanted = net(tokens[row : row + 1, : length + number])[0, -1]
                    assert (scores[row] - wanted).abs().max() <= bound * max(1.0, float(wanted.abs().max()))


def test_the_work_of_a_token_does_not_grow_with_the_tokens_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 completions of 512 tokens. Counted: tokens that the model reads, and products of queries with keys.

    A row that is read whole for each token would read 8 x 512 x 513 / 2 tokens.
    """
    import torch

    prompt, count, most = list(range(16)), 8, 512
    net = gpt(len(prompt) + most)
    read: list[int] = []
    pairs: list[int] = []
    attention = torch.nn.functional.scaled_dot_product_attention

    def counted(q: Any, k: Any, v: Any, **how: Any) -> Any:
        pairs.append(q.shape[0] * q.shape[2] * k.shape[2])
        return attention(q, k, v, **how)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    net.embedding.register_forward_hook(lambda _module, inputs, _made: read.append(inputs[0].numel()))
    for part in (*net.blocks, net.head):
        part.register_forward_hook(lambda _module, inputs, _made: read.append(inputs[0].shape[:-1].numel()))
    how = {"count": count, "max_tokens": most, "temperature": 1.0, "end": -1}
    made = lib("policy").sample(net, [prompt], **how, generator=torch.Generator().manual_seed(1))
    assert [len(one.tokens) for one in made[0]] == [most] * count
    # The prompt once, in the embedding and two blocks; its last token alone in the head. Then each token once everywhere.
    assert read == [16, 16, 16, 1] + [count] * 4 * (most - 1)
    # Attention: each token with those before it, and itself.
    assert pairs == [16 * 16] * 2 + [count * (16 + number) for number in range(1, most) for _ in range(2)]


def test_what_is_kept_is_copied_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The places grow by half: 512 tokens take a handful of copies, not one for each token."""
    import torch

    grown: list[int] = []
    cat = torch.cat

    def counted(parts: Any, dim: int = 0) -> Any:
        grown.append(dim)
        return cat(parts, dim)

    monkeypatch.setattr(torch, "cat", counted)
    net = gpt(600)
    how = {"count": 1, "max_tokens": 512, "temperature": 1.0, "end": -1}
    lib("policy").sample(net, [[1]], **how, generator=torch.Generator().manual_seed(1))
    assert grown.count(2) <= 2 * 2 * 8  # keys and values of two blocks


def test_a_row_beyond_the_context_is_refused() -> None:
    """As a ValueError: an index beyond the last position would end the process on a GPU."""
    import torch

    how = {"count": 1, "max_tokens": 9, "temperature": 1.0, "end": -1}
    with pytest.raises(ValueError, match="a row has 17 tokens, and the model's context is 16"):
        lib("policy").sample(gpt(16), [[1] * 9], **how, generator=torch.Generator().manual_seed(1))
    assert lib("policy").sample(gpt(17), [[1] * 9], **how, generator=torch.Generator().manual_seed(1))


def test_a_completion_that_ends_keeps_its_tokens_while_others_continue() -> None:
    import torch

    net = gpt()
    how = {"count": 4, "max_tokens": 30, "temperature": 1.0}
    whole = lib("policy").sample(net, PROMPTS, **how, end=-1, generator=torch.Generator().manual_seed(2))
    end = whole[0][0].tokens[7]
    cut = lib("policy").sample(net, PROMPTS, **how, end=end, generator=torch.Generator().manual_seed(2))
    for long, short in zip([one for of in whole for one in of], [one for of in cut for one in of], strict=True):
        last = long.tokens.index(end) + 1 if end in long.tokens else len(long.tokens)
        assert dataclasses.asdict(short) == {"tokens": long.tokens[:last], "logprobs": long.logprobs[:last]}
