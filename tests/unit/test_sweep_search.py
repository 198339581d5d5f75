"""Adaptive search: what is asked for, what a point gets, what is stopped, and what is left where something fails."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from kit.errors import ConfigError
from kit.hosts import whole_folder
from kit.record import manifest
from kit.schema.run_paths import RunPaths
from kit.schema.sweep import Distribution, Halving, Search, Sweep, Value
from kit.sweeps.prepare import PreparedSweep, prepare_sweep
from kit.sweeps.record import SweepPaths, SweepRecord
from kit.sweeps.search import apply_chosen_values, halving, on_node, search_trials
from kit.sweeps.search.search_trials import SearchTrial, State
from kit.sweeps.submit import RunWriter, new_record
from tests.support import write_job

pytest.importorskip("optuna")
import numpy as np

from kit.sweeps.search import search_space, suggest

JOB = 'name = "digits"\nlauncher = "ddp"\nargs = ["--epochs", "3"]\n[resources]\nnodes = 1\ngpus_per_node = 2\n'
KEYS = "[sweep.search.keys]\nargs.--lr = { log_uniform = [1e-4, 1.0] }\nenv.WIDTH = { uniform = [4, 64], integer = true }\n"
SEARCH = f'[sweep]\nmetric = "loss"\n[sweep.search]\ncount = 12\n{KEYS}'


@pytest.fixture(autouse=True)
def _cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "here.toml").write_text(
        '[node]\ncpus = 8\ngpus = 4\n[container]\nruntime = "bubblewrap"\n'
    )


def prepared(tmp_path: Path, text: str = SEARCH) -> PreparedSweep:
    return prepare_sweep(write_job(tmp_path, JOB + text), cluster="here", containers=False)


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        (SEARCH.replace('metric = "loss"\n', ""), "sweep.metric", "needs the name of the metric"),
        (SEARCH.replace("args.--lr", "resources.nodes"), "resources.nodes", "after Slurm has given the nodes"),
        (SEARCH.replace("[sweep]\n", "[sweep]\ngrid.seed = [1]\n"), "sweep.grid", "cannot be combined with grid"),
        (SEARCH.replace("[1e-4, 1.0]", "[1.0, 1e-4]"), "log_uniform", "the lower bound comes first"),
        (SEARCH.replace("[1e-4, 1.0]", '["a", 1.0]'), "log_uniform", ""),
        (SEARCH.replace("count = 12", 'count = "many"'), "sweep.search.count", ""),
        (SEARCH.replace("count = 12", "count = 12\nstop = { first = 0 }"), "first", ""),
        (SEARCH.replace("count = 12", "count = 12\nprune = true"), "prune", "no such key"),
        (SEARCH.replace("count = 12", 'count = 12\nobjectives = { loss = "least" }'), "objectives.loss", ""),
        (
            SEARCH.replace("count = 12", 'count = 12\nstop = { first = 9 }\nobjectives = { loss = "min", s = "min" }'),
            "sweep.search.stop",
            "several objectives",
        ),
        # The plan reads the batch size: 64 over two ranks is well, 7 is not, and an interval cannot be checked.
        (SEARCH + "args.--batch-size = { choice = [64, 7] }\n", "batch", "7"),
        (SEARCH + "args.--batch-size = { uniform = [8, 64], integer = true }\n", "--batch-size", "have to be listed"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_submitted(tmp_path: Path, text: str, key: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        prepared(tmp_path, text)
    assert key in str(caught.value)
    assert said in str(caught.value)
    assert "try:" in str(caught.value)


def test_a_search_without_optuna_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kit.errors import UsageError
    from kit.sweeps.search import search_requirements

    monkeypatch.setattr(search_requirements.importlib.util, "find_spec", lambda name: None)  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="needs Optuna"):
        prepared(tmp_path).arrays()


def test_one_array_asks_by_this_interpreter(tmp_path: Path) -> None:
    (array,) = prepared(tmp_path).arrays()
    assert "kit.sweeps.search.on_node\n" in array.text
    assert array.members == tuple(range(12))


def submitted(tmp_path: Path, text: str = SEARCH) -> tuple[SweepPaths, SweepRecord]:
    """A search whose folders are written as `kit sweep` writes them, and that Slurm does not know."""
    from datetime import UTC, datetime

    (tmp_path / "sinfo").write_text("#!/bin/sh\necho slurm 22.05\n")
    (tmp_path / "sinfo").chmod(0o755)
    made, now = prepared(tmp_path, text), datetime.now(UTC)
    with whole_folder.make_whole(made.folder) as partial:
        SweepPaths(partial).points.mkdir()
        RunWriter(made, made.points[0], (), now=now).write(partial, made.points)
        record = new_record(made, arrays=(), now=now)
        record.write(SweepPaths(partial))
    return SweepPaths(made.folder), record


def ended(run_dir: Path, **reached: float) -> None:
    """What a point leaves that has ended."""
    paths = RunPaths(run_dir)
    paths.metrics.write_text(f"{json.dumps({'kind': 'final', 'step': 1, **reached})}\n")
    paths.events.write_text(
        json.dumps({"event": "start", "job_id": 1}) + "\n" + json.dumps({"event": "end", "exit_code": "0"}) + "\n"
    )


def test_a_point_gets_values_in_its_program_its_job_and_its_manifest(tmp_path: Path) -> None:
    """And the points beside it, which share files with it, keep theirs; a second time changes nothing."""
    paths, _ = submitted(tmp_path)
    first, second = paths.point(0), paths.point(1)
    before = (second / "program.sh").read_text()
    assert on_node.main(["ask", str(first)]) == 0
    values = search_trials.suggestion(first)
    assert values is not None
    assert 1e-4 <= float(str(values["args.--lr"])) <= 1.0
    program = (first / "program.sh").read_text()
    assert f"    --lr\n    {values['args.--lr']}\n" in program
    assert program.count("WIDTH=") == 1
    assert f"    WIDTH={values['env.WIDTH']}\n" in program
    job = tomllib.loads((first / "job.toml").read_text())
    assert job["args"][-2:] == ["--lr", str(values["args.--lr"])]
    assert job["env"]["WIDTH"] == str(values["env.WIDTH"])
    assert manifest.read_manifest(RunPaths(first).manifest).point == values
    assert (second / "program.sh").read_text() == before
    kept = {path: path.read_bytes() for path in (first / "program.sh", first / "job.toml", first / "manifest.json")}
    assert on_node.main(["ask", str(first)]) == 0
    assert {path: path.read_bytes() for path in kept} == kept


def test_a_kill_between_the_choice_and_the_files_is_made_good_at_the_next_start(tmp_path: Path) -> None:
    paths, _ = submitted(tmp_path)
    search_trials.suggest(paths.point(0), {"args.--lr": 0.25, "env.WIDTH": 8})
    assert on_node.main(["ask", str(paths.point(0))]) == 0
    assert "    --lr\n    0.25\n" in (paths.point(0) / "program.sh").read_text()


def test_two_that_ask_one_after_the_other_get_different_values(tmp_path: Path) -> None:
    paths, record = submitted(tmp_path)
    for number in range(12):
        assert on_node.main(["ask", str(paths.point(number))]) == 0
        if number % 2:
            ended(paths.point(number), loss=float(number))
    given = [search_trials.suggestion(paths.point(point.index)) for point in record.points]
    assert len({json.dumps(one) for one in given}) == 12


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"values": 3}', "\0" * 100])
def test_a_torn_suggestion_is_none_and_stops_nobody(tmp_path: Path, damage: str) -> None:
    paths, _ = submitted(tmp_path)
    for number in range(3):
        assert on_node.main(["ask", str(paths.point(number))]) == 0
    search_trials.suggestion_file(paths.point(1)).write_text(damage)
    (paths.point(2) / "metrics.jsonl").write_text('{"loss": 1.0, "step": 1}\n{"lo')
    assert on_node.main(["ask", str(paths.point(3))]) == 0
    assert on_node.main(["ask", str(paths.point(1))]) == 0, "the point itself gets new ones"
    assert search_trials.suggestion(paths.point(1)) is not None


def test_where_nothing_can_be_written_the_point_keeps_what_it_was_planned_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """/dev/full is a full disk."""
    paths, _ = submitted(tmp_path)
    before = (paths.point(0) / "program.sh").read_text()
    search_trials.suggestion_file(paths.point(0)).mkdir()
    assert on_node.main(["ask", str(paths.point(0))]) == 1
    assert (paths.point(0) / "program.sh").read_text() == before
    assert "search: " in capsys.readouterr().err


def bowl(values: Mapping[str, Value]) -> float:
    """Least at lr = 0.01, width 32."""
    return (math.log10(float(str(values["args.--lr"]))) + 2) ** 2 + ((float(str(values["env.WIDTH"])) - 32) / 16) ** 2


def search(**more: object) -> Search:
    keys = {
        "args.--lr": Distribution(log_uniform=(1e-4, 1.0)),
        "env.WIDTH": Distribution(uniform=(4, 64), integer=True),
        "args.--optimizer": Distribution(choice=("adamw", "sgd")),
    }
    return Search.model_validate({"count": 50, "keys": keys, **more})


def test_later_points_are_better_than_the_first_ones() -> None:
    """With one that failed, one that diverged and one that still runs among them; every seed."""
    for seed in range(3):
        known: list[SearchTrial] = []
        for index in range(40):
            values = suggest.following(search(seed=seed), ["min"], known, index)
            worse = 0.0 if values["args.--optimizer"] == "sgd" else 1.0
            known.append(SearchTrial(index=index, state="complete", values=values, reached=(bowl(values) + worse,)))
            if index in {4, 5, 6}:
                state = {4: "failed", 5: "pruned", 6: "running"}[index]
                known[index] = SearchTrial(index=index, state=state, values=values)  # type: ignore[arg-type]
        costs = [one.reached[0] for one in known if one.reached]
        assert sum(costs[-10:]) / 10 < sum(costs[:10]) / 10


def test_a_search_comes_near_the_best_in_few_points() -> None:
    """A bowl over a logarithm, a whole number and a choice: its best cost is 0, of twelve draws at random about 0.2."""
    for seed in range(3):
        assert min(one.reached[0] for one in _searched(search(seed=seed), "min", 32)) < 0.05
    # The other way round, and moved by a thousand: neither sign nor zero matters.
    turned = _searched(search(seed=1), "max", 32, value=lambda cost: 1000 - cost)
    assert max(one.reached[0] for one in turned) > 999.95


def _searched(
    asked: Search, goal: str, count: int, value: Callable[[float], float] = lambda cost: cost
) -> list[SearchTrial]:
    known: list[SearchTrial] = []
    for index in range(count):
        values = suggest.following(asked, [goal], known, index)
        cost = bowl(values) + (0.0 if values["args.--optimizer"] == "sgd" else 1.0)
        known.append(SearchTrial(index=index, state="complete", values=values, reached=(value(cost),)))
    return known


def test_the_same_points_and_the_same_seed_give_the_same_values() -> None:
    """So a question may be asked again after a kill. Another seed, or another point, gives others."""
    known = _searched(search(seed=3), "min", 14)
    asked = [suggest.following(search(seed=seed), ["min"], known, index) for seed, index in ((3, 14), (3, 14), (4, 14))]
    assert asked[0] == asked[1] != asked[2]
    first = [suggest.following(search(seed=3), ["min"], [], index) for index in range(10)]
    assert first == [one.values for one in known[:10]]


def test_the_first_points_fill_the_space_evenly() -> None:
    """Of ten points each half of a side has about five, and every fifth of it one: what draws at random rarely have."""
    places = [search_space.make_space(search().keys).spread(index, 7) for index in range(10)]
    for axis in range(3):
        halves = sum(place[axis] < 0.5 for place in places)
        assert 4 <= halves <= 6


def test_values_and_their_places() -> None:
    """Each value is found again where it lies, the ends of an interval of whole numbers too; a list's True is not its 1."""
    keys = {
        "args.--a": Distribution(log_uniform=(1e-4, 1.0)),
        "args.--b": Distribution(uniform=(-3, 5), integer=True),
        "args.--c": Distribution(choice=(1, True, "x", (1, 2))),
        "args.--d": Distribution(log_uniform=(1, 8), integer=True),
    }
    space = search_space.make_space(keys)
    rng = np.random.default_rng(0)
    drawn = [space.values(place) for place in rng.uniform(size=(300, 4))]
    assert {one["args.--b"] for one in drawn} == set(range(-3, 6))
    assert {one["args.--d"] for one in drawn} == set(range(1, 9))
    assert all(1e-4 <= float(str(one["args.--a"])) <= 1.0 for one in drawn)
    for one in drawn:
        again = space.values(space.places(one))
        assert again == one
        assert [type(value) for value in again.values()] == [type(value) for value in one.values()]
    apart = space.coordinates(np.array([[0.5, 0.5, 0.1, 0.5], [0.5, 0.5, 0.6, 0.5], [0.5, 0.5, 0.9, 0.5]]))
    assert np.linalg.norm(apart[0] - apart[1]) == pytest.approx(np.linalg.norm(apart[1] - apart[2]))


def test_what_a_point_is_taken_to_have_come_to() -> None:
    """One that was stopped early is no better than half of those that were not; one that diverged is the worst of all."""
    values: dict[str, Value] = {"args.--lr": 0.1, "env.WIDTH": 8, "args.--optimizer": "sgd"}
    known = [SearchTrial(index=n, state="complete", values=values, reached=(float(n),)) for n in range(3)]
    known += [
        SearchTrial(index=3, state="pruned", values=values, steps={10: 5.0, 20: 0.2}),
        SearchTrial(index=4, state="pruned", values=values, steps={10: 7.0}),
        SearchTrial(index=5, state="pruned", values=values, steps={10: math.nan}),
        SearchTrial(index=6, state="pruned", values=values, reached=(math.nan,)),
        SearchTrial(index=7, state="failed", values=values),
        SearchTrial(index=8, state="running", values=values),
        SearchTrial(index=9, state="complete", values={"args.--lr": 7.0}, reached=(0.0,)),
    ]
    assert suggest.costs(search(), "min", known) == {0: 0, 1: 1, 2: 2, 3: 1.0, 4: 7.0, 5: math.inf, 6: math.inf}
    assert suggest.costs(search(), "max", known[:4]) == {0: 0, 1: -1, 2: -2, 3: -0.2}


@pytest.mark.parametrize("reached", [0.5, 1e-300, 1e300, -7.0])
def test_points_that_all_came_to_the_same_say_nothing_and_harm_nothing(reached: float) -> None:
    known = [
        SearchTrial(index=n, state="complete", values=suggest.following(search(), ["min"], [], n), reached=(reached,))
        for n in range(10)
    ]
    assert suggest.following(search(), ["min"], known, 10) not in [one.values for one in known]


def test_a_list_of_values_is_gone_through_before_one_is_tried_again() -> None:
    keys = {"args.--lr": Distribution(choice=(0.1, 0.2, 0.3)), "env.N": Distribution(uniform=(1, 4), integer=True)}
    asked = Search(count=12, keys=keys, startup=4)
    known: list[SearchTrial] = []
    for index in range(12):
        values = suggest.following(asked, ["min"], known, index)
        state: State = "running" if index % 3 == 2 else "complete"
        known.append(SearchTrial(index=index, state=state, values=values, reached=(float(str(values["env.N"])),)))
    later = [json.dumps(one.values) for one in known[4:]]
    assert len(set(later)) == len(later)


def test_beyond_what_a_model_is_good_for_the_other_sampler_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many points, many keys, several objectives: by TPE, which takes all three."""
    values: dict[str, Value] = {"args.--lr": 0.1, "env.WIDTH": 8, "args.--optimizer": "sgd"}
    many = [SearchTrial(index=n, state="complete", values=values, reached=(1.0,)) for n in range(301)]
    wide = Search(count=9, keys={f"args.--k{n}": Distribution(uniform=(0, 1)) for n in range(21)})
    monkeypatch.setattr("kit.sweeps.search.expected_improvement.following", lambda *_: pytest.fail("a model was asked"))
    monkeypatch.setattr("kit.sweeps.search.search_space.make_space", lambda *_: pytest.fail("a model was asked"))
    assert len(suggest.following(search(), ["min"], many, 301)) == 3
    assert len(suggest.following(wide, ["min"], [], 0)) == 21
    assert len(suggest.following(search(objectives={"a": "min", "b": "max"}), ["min", "max"], [], 0)) == 3


def test_several_objectives_and_values_of_another_search() -> None:
    known = [SearchTrial(index=0, state="complete", values={"args.--lr": 7.0}, reached=(1.0, 2.0))]
    values = suggest.following(search(objectives={"a": "min", "b": "max"}, startup=1), ["min", "max"], known, 1)
    assert set(values) == {"args.--lr", "env.WIDTH", "args.--optimizer"}


RULE = Halving(first=10, factor=3)


def test_a_point_that_is_bad_early_is_stopped_and_a_good_one_is_not() -> None:
    others = [{10: 1.0, 30: 0.5}, {11: 2.0}, {5: 9.0}, {10: 4.0}]
    assert halving.verdict(RULE, "min", {10: 3.0}, others) == 10
    assert halving.verdict(RULE, "min", {10: 0.5}, others) is None
    assert halving.verdict(RULE, "max", {10: 5.0}, others) is None
    assert halving.verdict(RULE, "min", {10: math.nan}, others) == 10
    assert halving.verdict(RULE, "min", {9: 3.0}, others) is None, "it has not come so far"
    assert halving.verdict(RULE, "min", {10: 3.0}, others[:1]) is None, "too few have"


def test_a_sweep_of_old_is_read_as_before() -> None:
    assert Sweep.model_validate({"grid": {"seed": [1]}}).objectives == {}


def test_replica_groups_have_programs_of_their_own(tmp_path: Path) -> None:
    paths, _ = submitted(tmp_path)
    inner = paths.point(0) / "roles" / "replica-0"
    inner.mkdir(parents=True)
    (inner / "program.sh").write_text(
        (paths.point(0) / "program.sh").read_text().replace("KIT_PROGRAM_ENV=(\n", "KIT_PROGRAM_ENV=(\n    A=1\n")
    )
    apply_chosen_values.apply(paths.point(0), {"args.--lr": 0.5, "env.WIDTH": 8})
    assert "    --lr\n    0.5\n" in (inner / "program.sh").read_text()
    assert "    A=1\n" in (inner / "program.sh").read_text()
