"""Points of a sweep: products, draws, expressions, lookups, conditions, duplicates; and every fault at once."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from kit import config
from kit.errors import ConfigError
from kit.schema.sweep import Sweep
from kit.sweeps.points.expand import Expansion, expand
from kit.sweeps.points.expressions import ExpressionError, checked, evaluate
from kit.sweeps.points.program_options import read_option, with_option
from kit.sweeps.points.table_lookup import Tables

BASE = {"args": ["--epochs", "12", "--width=8"], "resources": {"nodes": 2}, "name": "digits"}


def expanded(text: str, *, project: Path = Path("/nowhere")) -> Expansion:
    sweep = config.validate(tomllib.loads(text), Sweep, file="job.toml")
    return expand(sweep, base=BASE, tables=Tables(project), file="job.toml")


def points(text: str, **options: Path) -> list[dict[str, object]]:
    return [dict(point.values) for point in expanded(text, **options).points]


def table(project: Path, name: str, text: str) -> None:
    (project / "tables").mkdir(exist_ok=True)
    (project / "tables" / f"{name}.toml").write_text(text)


def test_grid_is_every_combination_and_the_last_key_changes_fastest() -> None:
    assert points('grid.args.--lr = [1e-3, 1e-2]\ngrid."seed" = [1, 2]\n') == [
        {"args.--lr": lr, "seed": seed} for lr in (1e-3, 1e-2) for seed in (1, 2)
    ]


def test_zip_goes_side_by_side() -> None:
    found = points("zip.resources.nodes = [1, 2]\nzip.args.--batch-size = [64, 128]\n")
    assert found == [{"resources.nodes": 1, "args.--batch-size": 64}, {"resources.nodes": 2, "args.--batch-size": 128}]


def test_the_parts_multiply() -> None:
    found = expanded(
        "points.small.args.--size = 1\npoints.big.args.--size = 2\ngrid.seed = [1, 2, 3]\nrandom.count = 2\n"
        "random.keys.args.--lr.uniform = [0, 1]\n"
    ).points
    assert len(found) == 2 * 3 * 2
    assert [point.name for point in found] == ["small"] * 6 + ["big"] * 6
    assert [point.index for point in found] == list(range(12))


def test_random_is_the_same_for_the_same_seed_and_a_new_key_moves_no_other() -> None:
    one = "random.count = 50\nrandom.keys.args.--lr.log_uniform = [1e-4, 1e-1]\n"
    drawn = [p["args.--lr"] for p in points(one)]
    assert drawn == [p["args.--lr"] for p in points(one + "random.keys.seed = { uniform = [1, 9], integer = true }\n")]
    assert drawn != [p["args.--lr"] for p in points(one + "random.seed = 1\n")]
    assert all(isinstance(x, float) and 1e-4 <= x <= 1e-1 for x in drawn)
    below = sum(x < 10**-2.5 for x in drawn if isinstance(x, float))
    assert 15 <= below <= 35, "half of the draws are in the lower half of the logarithm"
    seeds = {p["seed"] for p in points("random.count = 50\nrandom.keys.seed.choice = [3, 5]\n")}
    assert seeds <= {3, 5}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("= 3e-3 * sqrt(batch_size / 64)", 6e-3),
        ("= args.batch_size * resources.nodes", 512),
        ("= args.epochs + args.width", 20),
        ("= 'a' if seed == 1 else 'b'", "a"),
        ("= name + '-' + str(seed)", "digits-1"),
        ("= [batch_size, batch_size * 2]", (256, 512)),
        ("= other * 2", 14),
        ("= seed == 1", True),
        ("plain", "plain"),
    ],
)
def test_expressions(expression: str, value: object) -> None:
    text = f'set.args.--x = "{expression}"\nset.var.other = "= seed + 6"\ngrid.seed = [1]\ngrid.args.--batch-size = [256]\n'
    (found,) = points(text)
    assert found["args.--x"] == (pytest.approx(value) if isinstance(value, float) else value)
    assert type(found["args.--x"]) is type(value)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("= lrr", "did you mean 'lr'?"),
        ("= epoch", "did you mean 'args.epochs'?"),
        ("= 1 / 0", "division by zero"),
        ("= 1 +", "not an expression"),
        ("= x", "need each other: args.--x -> args.--x"),
        ("= y", "need each other"),
        ("= open('/etc/passwd')", "'open' is not a function here; known: abs,"),
        ("= sqr(4)", "did you mean 'sqrt'?"),
        ("= lr.__class__", "__class__"),
        ("= resources", "a table of the job"),
        ("= 1e308 * 10", "inf"),
        ("= [1.0, 1e308 * 10]", "inf"),
        ("lookup:stepz", "no tables/ folder holds 'stepz'; did you mean 'steps'?"),
    ],
)
def test_an_expression_without_a_value_is_a_fault(expression: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        expanded(f'set.args.--x = "{expression}"\nset.args.--y = "= x"\ngrid.args.--lr = [1, 2, 3]\n')
    faults = [fault for fault in caught.value.faults if fault.key.endswith("args.--x")]
    assert len(faults) == 1, "said once, not once a point"
    assert reason in faults[0].problem


def test_all_expressions_without_a_value_are_said_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        expanded(
            'when = ["lr <", "lr > 0"]\nset.args.--x = "= lrr"\nset.args.--y = "= 1 / 0"\ngrid.args.--lr = [1, 2]\n'
        )
    assert [fault.key for fault in caught.value.faults] == ["sweep: args.--x", "sweep: args.--y", "sweep.when[0]"]


def test_a_short_name_that_two_keys_share_needs_its_long_form() -> None:
    keys = "grid.var.nodes = [5]\ngrid.resources.nodes = [3]\n"
    assert points(keys + 'set.args.--x = "= var.nodes * resources.nodes"\n')[0]["args.--x"] == 15
    with pytest.raises(ConfigError, match="'nodes' is not a name here"):
        expanded(keys + 'set.args.--x = "= nodes"\n')


def test_conditions_and_duplicates_are_counted() -> None:
    found = expanded(
        'when = ["lr < 0.5", "seed > 1 or lr > 0.1"]\ngrid.args.--lr = [0.1, 0.2, 0.2, 0.9]\ngrid.seed = [1, 2]\n'
    )
    assert [dict(p.values) for p in found.points] == [
        {"args.--lr": 0.1, "seed": 2}, {"args.--lr": 0.2, "seed": 1}, {"args.--lr": 0.2, "seed": 2},
    ]  # fmt: skip
    assert found.refused == 3
    assert [first.index for _, first in found.duplicates] == [1, 2]


def test_names_of_the_sweeps_own_make_no_other_job() -> None:
    assert len(expanded("points.a.var.x = 1\npoints.b.var.x = 2\nset.seed = 1\n").points) == 1


def test_conditions_that_refuse_all_points() -> None:
    with pytest.raises(ConfigError, match="leave none of the 2 points"):
        expanded('when = ["seed > 5"]\ngrid.seed = [1, 2]\n')


TABLE = """
by = ["model", "args.batch"]
[defaults]
ratio = 20
[values.small]
64 = 100
128 = "= ratio * 3"
[values.big]
"*" = "= lookup('sizes.parameters') / batch"
"""
SIZES = """
by = ["model"]
[values.small]
width = 4
parameters = "= width * 10"
[values.big]
width = 8
parameters = "= width * 10"
"""


def test_lookups(tmp_path: Path) -> None:
    table(tmp_path, "steps", TABLE)
    table(tmp_path, "sizes", SIZES)
    text = (
        'grid.var.model = ["small", "big"]\ngrid.args.--batch = [64, 128]\nset.args.--steps = "lookup:steps"\n'
        'set.args.--width = "lookup:sizes.width"\nset.args.--twice = "= 2 * lookup(\'steps\')"\n'
    )
    found = points(text, project=tmp_path)
    assert [p["args.--steps"] for p in found] == [100, 60, 80 / 64, 80 / 128]
    assert [p["args.--width"] for p in found] == [4, 4, 8, 8]
    assert [p["args.--twice"] for p in found] == [200, 120, 2.5, 1.25]
    assert points(text + "set.var.ratio = 1\n", project=tmp_path)[1]["args.--steps"] == 3, (
        "the point wins over a default"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            'grid.var.model = ["smal"]\ngrid.args.--batch = [64]\nset.args.--x = "lookup:steps"\n',
            "did you mean 'small'?",
        ),
        (
            'grid.var.model = ["small"]\ngrid.args.--batch = [65]\nset.args.--x = "lookup:steps"\n',
            "no row for args.batch = 65",
        ),
        ('grid.args.--batch = [64]\nset.args.--x = "lookup:steps"\n', "'model' is not a name here"),
        ('grid.var.model = ["big"]\nset.args.--x = "lookup:sizes"\n', "name one of them, such as lookup:sizes.width"),
        ('grid.var.model = ["big"]\nset.args.--x = "lookup:sizes.depth"\n', "no column 'depth'"),
        ('grid.var.model = ["small"]\ngrid.args.--batch = [64]\nset.args.--x = "lookup:steps.y"\n', "no column 'y'"),
    ],
)
def test_a_lookup_without_a_value_says_what_the_table_has(tmp_path: Path, text: str, reason: str) -> None:
    table(tmp_path, "steps", TABLE)
    table(tmp_path, "sizes", SIZES)
    with pytest.raises(ConfigError) as caught:
        expanded(text, project=tmp_path)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "give one of grid, zip, points, random and search"),
        ("grid.seed = []", "the list is empty"),
        ("zip.seed = [1, 2]\nzip.resources.nodes = [1]", "seed has 2, resources.nodes has 1"),
        ("grid.seed = [1]\nset.seed = 2", "seed is in grid and in set"),
        ("grid.Seed = [1]", "a key of the job"),
        ('grid."args.lr x" = [1]', "an option of the program"),
        ("random.count = 1\nrandom.keys.seed = { uniform = [2, 1] }", "the lower bound comes first"),
        ("random.count = 1\nrandom.keys.seed = { log_uniform = [0, 1] }", "bounds above 0"),
        ("random.count = 1\nrandom.keys.seed = { uniform = [0, 1], choice = [1] }", "a random key has one of"),
        ("random.count = 0\nrandom.keys.seed = { uniform = [0, 1] }", "1 is the least"),
        ("gird.seed = [1]", "did you mean 'grid'?"),
    ],
)
def test_a_table_that_cannot_be(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        expanded(text)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("args", "option", "value", "made"),
    [
        ([], "--lr", 0.001, ["--lr", "0.001"]),
        (["--lr", "1", "--x"], "--lr", 3e-05, ["--lr", "3e-05", "--x"]),
        (["a", "--lr=1", "b"], "--lr", 2, ["a", "--lr=2", "b"]),
        (["--lr", "-1", "b"], "--lr", 2, ["--lr", "2", "b"]),
        (["--lr", "1", "--lr", "2", "b"], "--lr", 3, ["--lr", "3", "b"]),
        (["--lr-min", "1"], "--lr", 3, ["--lr-min", "1", "--lr", "3"]),
        (["--fast", "b"], "--fast", False, ["b"]),
        (["b"], "--fast", True, ["b", "--fast"]),
        (["--fast", "b"], "--fast", True, ["--fast", "b"]),
        (["x"], "--layers", (1, 2), ["x", "--layers", "1", "2"]),
        (["--note", "old"], "--note", "a b'\"", ["--note", "a b'\""]),
    ],
)
def test_an_option_is_set_where_it_stands(args: list[str], option: str, value: object, made: list[str]) -> None:
    assert with_option(args, option, value) == made  # type: ignore[arg-type]


def test_options_are_read_by_the_names_of_expressions() -> None:
    args = ["--batch-size", "64", "--lr=1e-3", "--fast", "--name", "x", "--lr", "2e-3"]
    assert [read_option(args, name) for name in ("batch_size", "lr", "fast", "name", "none")] == [
        64,
        2e-3,
        True,
        "x",
        None,
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1][5]", "no such item: list index out of range"),
        ("{'a': 1}['b']", "no such item: 'b'"),
        ("1+" * 20_000 + "1", "at most 2000 are read"),
        ("-" * 1990 + "1", "nested too deeply"),
        ("(" * 900 + "1" + ")" * 900, ""),
        ("'x'.ljust(10**9)", "a value has no attribute 'ljust'"),
        ("f'{1:999999999}'", ""),
        ("'%999999999d' % 1", "'%' is for numbers"),
        ("[a for a in [1]]", ""),
        ("9**9**9**9", ""),
        ("'x' * 10**9", ""),
        ("[1] * 10**9", ""),
        ("(1).real", "a value has no attribute 'real'"),
        ("str.__class__", ""),
        ("1 if", ""),
        ("\0", ""),
        ("1e400 - 1e400", ""),
    ],
)
def test_expressions_that_ended_in_a_traceback_or_took_all_memory(text: str, said: str) -> None:
    with pytest.raises(ExpressionError, match=re.escape(said) or None):
        checked(evaluate(text, names=lambda _: {}, lookup=lambda _: 1))


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (
            {f"args.--a{n}": [*range(10)] for n in range(50)},
            "about 10^50 combinations; at most 100,000 can be submitted",
        ),
        ({f"args.--a{n}": [*range(10)] for n in range(3000)}, "about 10^3000 combinations"),
        ({"seed": [*range(1001)], "args.--lr": [0.1] * 100}, "100,100 combinations"),
    ],
)
def test_a_grid_that_is_too_large_is_counted_and_not_made(table: dict[str, list[object]], said: str) -> None:
    """At once, and without the memory of its points."""
    with pytest.raises(ConfigError) as caught:
        config.validate({"grid": table}, Sweep, file="job.toml")
    (fault,) = caught.value.faults
    assert said in fault.problem
    assert fault.key == "grid"


def test_the_draws_multiply_what_they_are_drawn_for() -> None:
    sweep = {"grid": {"seed": [1, 2]}, "random": {"count": 60_000, "keys": {"args.--lr": {"uniform": [0, 1]}}}}
    with pytest.raises(ConfigError, match="120,000 combinations"):
        config.validate(sweep, Sweep, file="job.toml")
    made = config.validate({**sweep, "grid": {"seed": [1]}}, Sweep, file="job.toml")
    assert made.combinations == 60_000
