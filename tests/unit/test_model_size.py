"""Model arithmetic against published figures, and the shipped tables against the arithmetic."""

from __future__ import annotations

import tomllib
from functools import partial
from typing import Any

import pytest

from kit import config, model_size
from kit.errors import UsageError
from kit.model_size import ModelShape
from kit.schema.lookup_table import Table
from kit.schema.sweep import Sweep
from kit.sweeps.points.expand import expand
from kit.sweeps.points.program_options import read_option
from kit.sweeps.points.table_lookup import Tables
from kit.sweeps.prepare import prepare_sweep
from tests.support import REPO

# Totals that the models' authors publish.
PUBLISHED = {
    "GPT-2": (
        ModelShape(layers=12, dim=768, heads=12, vocab=50257, tied=True, gated=False, biases=True, positions=1024),
        124_439_808,
    ),
    "Pythia-70m": (ModelShape(layers=6, dim=512, heads=8, vocab=50304, gated=False, biases=True), 70_426_624),
    "Pythia-12b": (ModelShape(layers=36, dim=5120, heads=40, vocab=50688, gated=False, biases=True), 11_846_072_320),
    "Llama-7B": (ModelShape(layers=32, dim=4096, heads=32, vocab=32000, ffn=11008), 6_738_415_616),
    "Llama-3-8B": (
        ModelShape(layers=32, dim=4096, heads=32, kv_heads=8, vocab=128256, ffn=14336),
        8_030_261_248,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name: str) -> None:
    shape, count = PUBLISHED[name]
    assert shape.parameters == count


def test_tokens_steps_and_operations() -> None:
    tokens = model_size.optimal_tokens(10**9)
    assert tokens == 20 * 10**9, "Hoffmann 2022, table 3, has 20.2 billion"
    assert model_size.optimal_tokens(10**9, tokens_per_parameter=1.5) == 15 * 10**8
    assert model_size.steps(tokens, global_batch=512, context=2048) == 19074
    assert model_size.steps(2048 * 512 * 3, global_batch=512, context=2048) == 3
    assert model_size.steps(2048 * 512 * 3 + 1, global_batch=512, context=2048) == 4, "no token is left out"
    assert model_size.operations(67 * 10**9, int(1.5e12)) == pytest.approx(6.03e23), (
        "Hoffmann 2022: about 5.76e23 for 67B"
    )


def test_a_shape_that_cannot_be() -> None:
    with pytest.raises(UsageError, match="--heads 3 must divide --dim 100"):
        ModelShape(layers=1, dim=100, heads=3, vocab=10)
    with pytest.raises(UsageError, match="--kv-heads 3 must divide --heads 4"):
        ModelShape(layers=1, dim=64, heads=4, kv_heads=3, vocab=10)


def values(name: str) -> dict[str, Any]:
    return config.load_model(REPO / "tables" / f"{name}.toml", Table).values


def shapes() -> dict[str, ModelShape]:
    return {
        name: ModelShape(
            gated=False, biases=True, **{key: row[key] for key in ("layers", "dim", "heads", "vocab", "context")}
        )
        for name, row in values("models").items()
    }


def test_every_shipped_table_is_valid() -> None:
    found = sorted(path.stem for path in (REPO / "tables").glob("*.toml"))
    assert found == ["local_batch", "models", "sharding", "steps", "weight_decay"]
    for name in found:
        assert config.load_model(REPO / "tables" / f"{name}.toml", Table).source, "a number has its source"


def test_counts_in_the_models_table() -> None:
    for name, shape in shapes().items():
        row = values("models")[name]
        assert (row["parameters"], row["non_embedding"]) == (
            shape.parameters,
            shape.non_embedding,
        )


def test_local_batches_in_their_table() -> None:
    for name, row in values("local_batch").items():
        for memory, batch in row.items():
            assert batch == model_size.local_batch(shapes()[name], gpu_memory_gb=float(memory)), (name, memory)
            fits = not model_size.needs_sharding(shapes()[name].parameters, gpu_memory_gb=float(memory))
            assert fits or batch in {0, 1}, "a model that needs sharding has hardly any room for a batch"


def test_a_scaling_study_looks_its_figures_up() -> None:
    text = """
    grid.var.model = ["70m", "6.9b"]
    grid.var.global_batch = [256, 512]
    set.var.gpu_memory_gb = 80
    set.var.optimizer = "adamw"
    set.args.--steps = "lookup:steps"
    set.args.--shard = "lookup:sharding"
    set.args.--weight-decay = "lookup:weight_decay"
    set.args.--layers = "lookup:models.layers"
    """
    sweep = config.validate(tomllib.loads(text), Sweep, file="job.toml")
    points = expand(sweep, base={}, tables=Tables(REPO), file="job.toml").points
    for point in points:
        shape = shapes()[str(point.values["var.model"])]
        count = shape.parameters
        batch = int(str(point.values["var.global_batch"]))
        steps = model_size.steps(model_size.optimal_tokens(count), global_batch=batch, context=shape.context)
        assert point.values["args.--steps"] == steps
        assert point.values["args.--shard"] == model_size.needs_sharding(count, gpu_memory_gb=80)
        assert point.values["args.--layers"] == shape.layers
        assert point.values["args.--weight-decay"] == 0.1
    assert {point.values["args.--shard"] for point in points} == {True, False}
    tokens: dict[object, set[int]] = {p.values["var.model"]: set() for p in points}
    for p in points:
        tokens[p.values["var.model"]].add(
            round(int(str(p.values["args.--steps"])) * int(str(p.values["var.global_batch"])), -4)
        )
    assert all(len(one) == 1 for one in tokens.values()), "every batch size sees the same tokens"


def test_the_study_of_replica_groups_works_its_figures_out() -> None:
    """examples/torchtitan-sweep: what TorchTitan is given at each point."""
    made = prepare_sweep(REPO / "examples" / "torchtitan-sweep" / "job.toml", cluster="infiniband", containers=False)
    decays = []
    for point, run in zip(made.points, made.runs, strict=True):
        given: Any = partial(read_option, run.plan.job.args)
        model, batch = str(point.values["var.model"]), int(str(point.values["var.global_batch"]))
        shape = shapes()[model]
        words = run.plan.job.args
        assert words[words.index("--model.flavor") + 1] == model, "every point trained the flavour of the file"
        groups = [role for role in run.plan.roles if role.role.policy == "replica"]
        assert (len(groups), groups[0].world_size) == (4, 4)
        count = shape.parameters
        budget = model_size.steps(model_size.optimal_tokens(count), global_batch=batch, context=shape.context)
        assert given("training.steps") == budget + 1, "the last average is made after the last step"
        copies = 4 // given("parallelism.tensor_parallel_degree")
        local = given("training.local_batch_size")
        sharded = model_size.needs_sharding(count, gpu_memory_gb=80)
        assert given("parallelism.data_parallel_shard_degree") == (-1 if sharded else 1)
        assert given("parallelism.data_parallel_replicate_degree") == (1 if sharded else copies)
        fits = 1 if sharded else values("local_batch")[model]["80"]
        assert local == min(fits, batch // len(groups) // copies), "the rank's share of its group's, as far as it fits"
        assert given("validation.steps") * batch == 4096
        decays.append(given("optimizer.weight_decay") * budget)
        assert given("checkpoint.interval") % given("fault_tolerance.sync_steps") == 0
    assert decays == pytest.approx([0.1 * 20_000] * len(decays))
    assert {point.name for point in made.points} == {"plain", "quantised", "streaming"}
    assert all("--fault_tolerance.num_fragments" in run.plan.job.args for run in made.runs[12:])
