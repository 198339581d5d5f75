"""The parts of launchers/diloco by themselves: Muon, quantised averages."""

import importlib.util
import json
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

LAUNCHERS = Path(__file__).parents[2] / "launchers"
MUON_PATH = f"{LAUNCHERS}:{LAUNCHERS / 'diloco'}"
pytestmark = [
    pytest.mark.smoke,
    pytest.mark.skipif(importlib.util.find_spec("torchft") is None, reason="torchft is not installed (make training)"),
]


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Import as the program does: its own folder and launchers/ on the path."""
    for folder in (LAUNCHERS, LAUNCHERS / "diloco"):
        monkeypatch.syspath_prepend(str(folder))
    yield
    for name in ("muon", "quantise", "state", "groups", "quorum", "outer", "wire"):
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


def test_ranks_share_muons_work_and_get_what_one_alone_would(training: Any) -> None:
    """Each matrix is made orthogonal by one rank: whole copies (DDP) to the last bit, and rows of it (FSDP)."""
    run = training.run(Path(__file__).with_name("muon_ranks.py"), "run", ranks=2, env={"PYTHONPATH": MUON_PATH})
    told = json.loads(next(line for line in run.output().splitlines() if line.startswith("[{")))
    assert [one["ddp"] for one in told] == [0.0, 0.0]
    assert [one["fsdp"] for one in told] == [0.0, 0.0]
    alone, *shared = zip(*(one["calls"] for one in told), strict=True)
    assert alone == (15, 15), "three steps of five matrices"
    assert shared == [(12, 3), (12, 3)], (
        "of 48 x 32 the first takes two in two rounds, the second one; the others are alone"
    )


def test_muon_takes_the_matrices_of_the_blocks_and_nothing_else() -> None:
    import muon
    from lib import model

    net = model.GPT(model.GPTShape(layers=2, heads=2, dim=32, context=16))
    names = {parameter: name for name, parameter in net.named_parameters()}
    adamw, taken = muon.optimizers(net, "muon", lr=1e-3, weight_decay=0.1, beta2=0.99)
    assert adamw.defaults["betas"] == (0.9, 0.99)
    parts = {names[p].split(".", 2)[-1]: group["parts"] for group in taken.param_groups for p in group["params"]}
    assert parts == {
        "qkv.weight": (2, 2, 2),
        "attention_out.weight": (1,),
        "gate_up.weight": (1, 1),
        "down.weight": (1,),
    }
    rest = {names[p] for group in adamw.param_groups for p in group["params"]}
    assert {"embedding.weight", "head.weight", "norm.weight", "blocks.0.feed_norm.weight"} <= rest
    assert len(rest) + sum(len(group["params"]) for group in taken.param_groups) == len(names)


@pytest.mark.parametrize("keys", [1, 2, 4])
def test_queries_keys_and_values_are_each_made_orthogonal(keys: int) -> None:
    """With grouped queries they have different heights; three equal parts would mix rows of one with rows of another."""
    import muon
    import torch
    from lib import model

    torch.manual_seed(0)
    net = model.GPT(model.GPTShape(layers=1, heads=4, kv_heads=keys, dim=32, context=16))
    _, taken = muon.optimizers(net, "muon", lr=0.1, weight_decay=0.0)
    weight = net.blocks[0].qkv.weight
    before = weight.detach().clone()
    weight.grad = torch.randn_like(weight)
    taken.step()
    heights = [4 * 8, keys * 8, keys * 8]
    # The first direction is that of the gradient.
    for moved, gradient in zip((before - weight.detach()).split(heights), weight.grad.split(heights), strict=True):
        expected = 0.1 * 0.2 * 32**0.5 * muon.orthogonal(gradient)
        torch.testing.assert_close(moved, expected, rtol=1e-3, atol=1e-4)


def test_the_step_of_a_fused_optimizer_is_on_its_device() -> None:
    """The kernel of a GPU reads it there; elsewhere torch keeps it on the CPU. `meta` is a device that every machine has."""
    import state
    import torch

    net = torch.nn.Linear(2, 2, bias=False, device="meta")
    kept = {"weight": {"step": torch.tensor(3.0), "exp_avg": torch.zeros(2, 2)}}
    for fused, device in ((True, "meta"), (None, "cpu")):
        optimizer = torch.optim.AdamW(net.parameters())
        optimizer.param_groups[0]["fused"] = fused
        state.take_inner(net, [optimizer], kept)
        assert optimizer.state[net.weight]["step"].device.type == device
        assert optimizer.state[net.weight]["exp_avg"].device.type == "meta"


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

    net = model.GPT(model.GPTShape(layers=5, heads=2, dim=32, context=16))
    fragments = state.split(net, 2)
    assert sorted(name for names in fragments for name in names) == sorted(name for name, _ in net.named_parameters())
    assert "embedding.weight" in fragments[0]
    assert "head.weight" in fragments[1]
    assert {name.split(".")[1] for name in fragments[1] if name.startswith("blocks")} == {"1", "3"}


def test_the_largest_values_alone_come_to_the_mean_over_time() -> None:
    """Equal bits in all groups, and what was left out is sent later; bytes are those of the chosen values and their places."""
    import quantise
    import torch

    torch.manual_seed(0)
    values = torch.randn(3, 1000)
    weights = [[1, 0, 1], *[[1, 1, 1]] * 99]
    means = [(values * torch.tensor(row)[:, None]).sum(0) / sum(row) for row in weights]
    exchange = Exchange(3)

    def group(rank: int) -> tuple[list[Any], float]:
        average, results = quantise.Average(exchange.end(rank), top_k=0.1), []
        for row in weights:
            results.append(average(0, values[rank], row, rank))
            average.commit()
        return results, average.sent

    with ThreadPoolExecutor(3) as threads:
        every, sent = zip(*threads.map(group, range(3)), strict=True)
    assert all(torch.equal(mine, first) for others in every[1:] for mine, first in zip(others, every[0], strict=True))
    assert sent == (100 * 2 * 100 * 8,) * 3
    first = (every[0][0] - means[0]).norm() / means[0].norm()
    last = (sum(every[0]) - sum(means)).norm() / sum(means).norm()
    assert last < first / 5


@pytest.mark.parametrize("settings", [{"top_k": 1.5}, {"top_k": 0.1, "bits": 4}])
def test_a_share_that_cannot_be_is_refused(settings: dict[str, Any]) -> None:
    import outer

    with pytest.raises(SystemExit, match="--top-k"):
        outer.OuterSettings(steps=1, every=1, **settings).check(2)


def seat() -> Any:
    """A group of one rank, connected to nobody."""
    from types import SimpleNamespace

    import quorum

    made = quorum.Seat.__new__(quorum.Seat)
    made._world = SimpleNamespace(ddp_rank=0, ddp_world_size=1)
    made.pg = SimpleNamespace(errored=lambda: None, abort=lambda: None)
    made._connected, made._in_a_row = (), 0
    return made


def test_a_mistake_of_the_program_ends_it() -> None:
    """It was taken for a lost peer, 3,293 times."""
    import torch

    with pytest.raises(RuntimeError, match="must match the size"):
        seat().together(lambda: torch.zeros(2) + torch.zeros(3))


def test_a_lost_peer_is_met_again_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    import quorum
    import wire

    def lost() -> None:
        with wire.traffic():
            raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(quorum.time, "sleep", lambda _: None)
    made = seat()
    for _ in range(quorum.MOST_FAILURES - 1):
        with pytest.raises(quorum.MeetingFailed, match="Connection closed by peer"):
            made.together(lost)
    with pytest.raises(SystemExit, match="100 times in a row without an average"):
        made.together(lost)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_what_is_still_to_be_sent_is_saved_whole_and_cut_for_any_number_of_ranks(
    monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    """Rank 0's part alone was saved once, and all ranks took it."""
    from types import SimpleNamespace

    import state
    import torch
    from lib import model

    net = model.GPT(model.GPTShape(layers=2, heads=2, dim=32, context=16))
    made = []
    for rank in range(ranks):
        world = SimpleNamespace(ddp_rank=rank, ddp_world_size=ranks, control=None)
        made.append(state.Globals(net, world, torch.device("cpu"), fragments=2, lr=1.0, momentum=0.0))
    vector = torch.randn(sum(made[0].values[name].numel() for name in made[0].fragments[1]))
    parts = [one.part(vector) for one in made]

    def all_gather(into: list[Any], _mine: Any, group: object) -> None:
        for place, part in zip(into, parts, strict=True):
            place.copy_(part)

    monkeypatch.setattr(state.dist, "all_gather", all_gather)
    assert all(torch.equal(one.whole(1, part, None), vector) for one, part in zip(made, parts, strict=True))
