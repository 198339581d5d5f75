"""The parts of launchers/diloco by themselves: Muon, quantised averages."""

import importlib.util
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

LAUNCHERS = Path(__file__).parents[2] / "launchers"
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torchft") is None, reason="torchft is not installed (pip install -e '.[train]')"
)


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Import as the program does: its own folder and launchers/ on the path."""
    for folder in (LAUNCHERS, LAUNCHERS / "diloco"):
        monkeypatch.syspath_prepend(str(folder))
    yield
    for name in ("muon", "quantise", "state", "groups", "quorum", "outer"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("shape", [(64, 64), (32, 96), (3, 96, 32)])
def test_newton_schulz_makes_matrices_orthogonal(shape: tuple[int, ...]) -> None:
    import muon
    import torch

    torch.manual_seed(0)
    left, _, right = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    matrix = left @ torch.diag(torch.logspace(1, 0, min(shape[-2:]))) @ right
    result = muon.orthogonal(matrix)
    values = torch.linalg.svdvals(result)
    assert 0.6 < values.min() < values.max() < 1.3
    assert torch.nn.functional.cosine_similarity(result.flatten(), (left @ right).flatten(), dim=0) > 0.95


def test_muon_agrees_with_torchs_own() -> None:
    import muon
    import torch

    torch.manual_seed(0)
    start = torch.randn(48, 32)
    mine, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    optimizers = (
        muon.Muon([mine], lr=0.01, weight_decay=0.1),
        torch.optim.Muon([theirs], lr=0.01, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
    )
    for _ in range(5):
        gradient = torch.randn(48, 32)
        for parameter, optimizer in zip((mine, theirs), optimizers, strict=True):
            parameter.grad = gradient.clone()
            optimizer.step()
    # torch computes in bfloat16
    moved = (mine - start).norm()
    assert (mine - theirs).norm() < 0.03 * moved


def test_muon_takes_the_matrices_of_the_blocks_and_nothing_else() -> None:
    import muon
    from lib import model

    net = model.GPT(model.Shape(layers=2, heads=2, dim=32, context=16))
    names = {parameter: name for name, parameter in net.named_parameters()}
    adamw, taken = muon.optimizers(net, "muon", lr=1e-3, weight_decay=0.1, beta2=0.99)
    assert adamw.defaults["betas"] == (0.9, 0.99)
    parts = {names[p].split(".", 2)[-1]: group["parts"] for group in taken.param_groups for p in group["params"]}
    assert parts == {"qkv.weight": 3, "attention_out.weight": 1, "gate_up.weight": 2, "down.weight": 1}
    rest = {names[p] for group in adamw.param_groups for p in group["params"]}
    assert {"embedding.weight", "head.weight", "norm.weight", "blocks.0.feed_norm.weight"} <= rest
    assert len(rest) + sum(len(group["params"]) for group in taken.param_groups) == len(names)


@pytest.mark.parametrize(("bits", "error"), [(8, 0.012), (4, 0.16), (2, 0.46)])
def test_pack_and_unpack_lose_what_the_bits_cannot_hold(bits: int, error: float) -> None:
    import quantise
    import torch

    torch.manual_seed(0)
    values = torch.randn(3, 4 * quantise.BLOCK) * torch.tensor([[1e-6], [1.0], [1e4]])
    packed = quantise.pack(values, bits)
    assert packed.dtype == torch.uint8
    assert packed.shape == (3, 4 * (4 + quantise.BLOCK * bits // 8))
    again = quantise.unpack(packed, bits)
    assert ((again - values).norm(dim=1) / values.norm(dim=1) < error).all()
    zeros = torch.zeros(1, quantise.BLOCK)
    assert torch.equal(quantise.unpack(quantise.pack(zeros, bits), bits), zeros)


class Exchange:
    """The collectives of `groups` threads; each thread makes its own end with its rank."""

    def __init__(self, groups: int) -> None:
        self.barrier, self.slots = threading.Barrier(groups), [None] * groups

    def end(self, rank: int) -> Any:
        def swap(mine: Any) -> list[Any]:
            self.barrier.wait()
            self.slots[rank] = mine
            self.barrier.wait()
            return list(self.slots)

        class End:
            def alltoall_base(self, out: Any, packed: Any, *_: object) -> Any:
                for place, other in enumerate(swap(packed)):
                    out[place] = other[rank]
                return self

            def allgather(self, parts: Any, packed: Any, _: object) -> Any:
                for part, other in zip(parts[0], swap(packed[0]), strict=True):
                    part.copy_(other)
                return self

            def wait(self) -> None:
                pass

        return End()


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_error_feedback_makes_up_for_rounding_over_time(bits: int) -> None:
    import quantise
    import torch

    torch.manual_seed(0)
    values = torch.randn(3, 1000)
    weights = [[1, 0, 1], *[[1, 1, 1]] * 31]  # the second group has come back at the first round
    means = [(values * torch.tensor(row)[:, None]).sum(0) / sum(row) for row in weights]
    exchange = Exchange(3)

    def group(rank: int) -> list[Any]:
        average, results = quantise.Average(exchange.end(rank), bits), []
        for row in weights:
            results.append(average(0, values[rank], row, rank))
            average.commit()
        return results

    with ThreadPoolExecutor(3) as threads:
        every = list(threads.map(group, range(3)))
    assert all(torch.equal(mine, first) for others in every[1:] for mine, first in zip(others, every[0], strict=True))
    first = (every[0][0] - means[0]).norm() / means[0].norm()
    last = (sum(every[0]) - sum(means)).norm() / sum(means).norm()
    assert last < first / 10, "the mean of many comes ever nearer"


def test_fragments_hold_every_parameter_once() -> None:
    import state
    from lib import model

    net = model.GPT(model.Shape(layers=5, heads=2, dim=32, context=16))
    fragments = state.split(net, 2)
    assert sorted(name for names in fragments for name in names) == sorted(name for name, _ in net.named_parameters())
    assert "embedding.weight" in fragments[0]
    assert "head.weight" in fragments[1]
    assert {name.split(".")[1] for name in fragments[1] if name.startswith("blocks")} == {"1", "3"}
