"""Points become plans, and plans of one shape become one array; a bad point stops the whole sweep."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.errors import ConfigError, UsageError
from kit.planning.plan import plan
from kit.submission.prepare_run import prepare_job
from kit.sweeps.prepare import PreparedSweep, prepare_sweep
from kit.sweeps.record import RecordedPoint, SweepRecord
from kit.sweeps.shared_plans import kind_of
from tests.support import write_job

JOB = 'name = "digits"\nlauncher = "ddp"\nargs = ["--epochs", "3"]\n[resources]\nnodes = 2\ngpus_per_node = 2\n'


def prepared(
    folder: Path, sweep: str, *, overrides: tuple[str, ...] = (), into: SweepRecord | None = None
) -> PreparedSweep:
    return prepare_sweep(
        write_job(folder, JOB + sweep), cluster="here", overrides=overrides, into=into, containers=False
    )


@pytest.fixture(autouse=True)
def _cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # a Slurm of this machine has limits of its own
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "here.toml").write_text(
        'default_qos = "normal"\n[node]\ncpus = 8\ngpus = 4\nmemory = "64G"\n[container]\nruntime = "bubblewrap"\n'
        '[qos.normal]\npartition = "gpu"\n[qos.small]\nmax_array = 3\nmax_nodes = 2\n'
    )


def header(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]


def program(made: PreparedSweep, point: int) -> str:
    return made.runs[point].plan.text_of("program.sh")


def test_each_point_is_the_plan_of_its_own_job(tmp_path: Path) -> None:
    made = prepared(tmp_path, "[sweep.grid]\nargs.--lr = [1e-3, 1e-2]\nenv.X = [1, 2]\nseed = [7]\n")
    assert len(made.runs) == 4
    text = program(made, 1)
    assert "    --epochs\n    3\n    --lr\n    0.001\n" in text
    assert "X=2" in text
    plan = made.runs[1].plan
    assert plan.run_dir == made.folder / "points" / f"{made.folder.name}.1"
    assert plan.job.sweep is None, "the point's own job.toml can be submitted again"
    assert plan.job.seed == 7


def test_points_share_one_drawn_seed(tmp_path: Path) -> None:
    made = prepared(tmp_path, "[sweep.grid]\nargs.--lr = [1, 2, 3]\n")
    assert len({run.plan.job.seed for run in made.runs}) == 1


def test_one_shape_is_one_array(tmp_path: Path) -> None:
    made = prepared(tmp_path, "[sweep]\nparallel = 2\n[sweep.grid]\nargs.--lr = [1, 2, 3]\n")
    (array,) = made.arrays()
    options = header(array.text)
    assert array.members == (0, 1, 2)
    assert options[:2] == ["--job-name=digits", "--array=0-2%2"]
    assert f"--output={made.folder}/arrays/0/%a/logs/batch.log" in options
    own = set(header(made.runs[0].plan.text_of("batch.sh")))
    assert {o for o in own if not o.startswith("--output=")} < set(options), "everything else is as in a single job"


def test_nodes_in_use_limit_the_points_of_an_array(tmp_path: Path) -> None:
    sweep = "[sweep]\nmax_nodes = 6\n[sweep.grid]\nresources.nodes = [1, 2, 4]\nargs.--lr = [1, 2, 3, 4, 5, 6, 7]\n"
    shapes = {array.members[0] // 7: header(array.text)[1] for array in prepared(tmp_path, sweep).arrays()}
    assert shapes == {0: "--array=0-6%6", 1: "--array=0-6%3", 2: "--array=0-6%1"}
    fewer = prepared(tmp_path, sweep, overrides=("sweep.parallel=2", "retry.spares=1")).arrays()
    assert [header(array.text)[1] for array in fewer] == ["--array=0-6%2", "--array=0-6%2", "--array=0-6%1"]
    with pytest.raises(ConfigError, match=r"sweep.max_nodes: 6 nodes are too few: the largest point has 8"):
        prepared(tmp_path, sweep, overrides=("retry.spares=4",))


def test_as_few_arrays_as_shapes(tmp_path: Path) -> None:
    made = prepared(tmp_path, "[sweep.grid]\nargs.--lr = [1, 2]\nresources.nodes = [1, 2]\nname = ['a', 'b']\n")
    found = {array.members: array for array in made.arrays()}
    assert set(found) == {(0, 1, 4, 5), (2, 3, 6, 7)}
    for members, array in found.items():
        nodes = {made.runs[index].plan.allocation.nodes for index in members}
        assert {o for o in header(array.text) if o.startswith("--nodes=")} == {f"--nodes={n}" for n in nodes}


@pytest.mark.parametrize(
    ("limit", "count", "sizes"), [(101, 1000, [101] * 9 + [91]), (1001, 1001, [1001]), (5, 11, [5, 5, 1])]
)
def test_arrays_are_split_at_the_clusters_limit(tmp_path: Path, limit: int, count: int, sizes: list[int]) -> None:
    path = tmp_path / "clusters" / "here.toml"
    path.write_text(f"max_array = {limit}\n" + path.read_text())
    arrays = prepared(tmp_path, f"[sweep.random]\ncount = {count}\nkeys.args.--lr.uniform = [0, 1]\n").arrays()
    assert [len(array.members) for array in arrays] == sizes
    assert [index for array in arrays for index in array.members] == list(range(count))
    assert all(f"--array=0-{len(a.members) - 1}" in header(a.text) for a in arrays), "tasks are numbered from 0 in each"


def test_a_qos_row_limits_arrays_too(tmp_path: Path) -> None:
    made = prepared(tmp_path, "[sweep.grid]\nargs.--lr = [1, 2, 3, 4]\n", overrides=("qos=small",))
    assert [array.members for array in made.arrays()] == [(0, 1, 2), (3,)]


def test_faults_of_all_points_at_once_with_their_numbers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        prepared(
            tmp_path, "[sweep.grid]\nresources.nodes = [1, 0]\nresources.gpus_per_node = [2, 5]\nseed = [1, -1, 2]\n"
        )
    found = {fault.key: fault.file for fault in caught.value.faults}
    assert found["resources.nodes"].endswith("[sweep]: points 6-11")
    assert found["seed"].endswith("[sweep]: points 1,4,7,10")
    assert found["resources.gpus_per_node"].endswith(": points 3,5"), "what fits no node is found in the same reading"
    assert len(found) == 3


def test_a_point_that_breaks_a_rule_of_its_qos_row_is_named_with_the_rule(tmp_path: Path) -> None:
    table = '[sweep.grid]\nresources.nodes = [1, 4]\nqos = ["normal", "small", "smal"]\n'
    with pytest.raises(ConfigError) as caught:
        prepared(tmp_path, table)
    known, rule = sorted(caught.value.faults, key=lambda fault: fault.key)
    assert (known.key, known.allowed, known.hint) == ("qos", "normal, small", 'qos = "small"')
    assert known.file.endswith("[sweep]: points 2,5")
    assert (rule.key, rule.hint) == ("resources.nodes", "nodes = 2")
    assert rule.problem == "4 is more than QOS 'small' allows: max_nodes = 2"
    assert rule.file.endswith(": point 4 (nodes=4 qos=small)")


def test_one_bad_point_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"point 1 \(b nodez=2\): resources.nodez: .*did you mean 'nodes'"):
        prepared(tmp_path, "[sweep.points.a]\nseed = 1\n[sweep.points.b]\nresources.nodez = 2\n")


def test_a_swept_key_on_the_command_line_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="seed: the sweep sets this key too"):
        prepared(tmp_path, "[sweep.grid]\nseed = [1, 2]\n", overrides=("seed=3",))
    made = prepared(tmp_path, "[sweep.grid]\nseed = [1, 2]\n", overrides=("sweep.grid.seed=[5]", "resources.nodes=1"))
    assert [(r.plan.job.seed, r.plan.allocation.nodes) for r in made.runs] == [(5, 1)]


def test_a_swept_option_goes_into_the_arguments_of_the_command_line(tmp_path: Path) -> None:
    made = prepared(tmp_path, "[sweep.grid]\nargs.--lr = [1, 2]\n", overrides=('args=["--compile"]',))
    assert [list(run.plan.job.args) for run in made.runs] == [["--compile", "--lr", "1"], ["--compile", "--lr", "2"]]


def test_a_point_is_no_chain_and_has_no_stages(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        prepared(tmp_path, "[chain]\ntimes = 2\n[stages.a]\nseed = 1\n[sweep.grid]\nseed = [1, 2]\n")
    assert {fault.key for fault in caught.value.faults} == {"chain", "stages"}


def test_submit_and_sweep_point_at_each_other(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has a"):
        prepare_job(write_job(tmp_path, JOB + "[sweep.grid]\nseed = [1]\n"), cluster="here", overrides=[])
    with pytest.raises(UsageError, match="has no"):
        prepared(tmp_path, "")


def test_points_of_an_earlier_sweep_keep_their_numbers(tmp_path: Path) -> None:
    first = prepared(tmp_path, "[sweep.grid]\nargs.--lr = [1, 2]\n")
    record = SweepRecord(
        sweep_id="digits-1", job_name="digits", job_file="job.toml", cluster="here", seed=99, metric=None, goal="min", arrays=(),
        submitted_at="2026-01-01T00:00:00Z",
        points=tuple(RecordedPoint(index=p.index, name=p.name, values=p.values) for p in first.points),
    )  # fmt: skip
    again = prepared(tmp_path, "[sweep.grid]\nargs.--lr = [3, 2, 4]\n", into=record)
    assert {p.values["args.--lr"]: p.index for p in again.points} == {2: 1, 3: 2, 4: 3}
    assert again.folder.name == "digits-1"
    assert {run.plan.job.seed for run in again.runs} == {99}, "what was drawn at the first submission holds"


def test_a_thousand_points_in_one_process(tmp_path: Path) -> None:
    """How long it takes is measured by benchmarks/sweeps.py."""
    sweep = '[sweep.random]\ncount = 1000\nkeys.args.--lr.uniform = [0, 1]\n[sweep.set]\nargs.--epochs = "= int(1000 * lr)"\n'
    made = prepared(tmp_path, sweep)
    assert len(made.runs) == 1000
    assert len(made.arrays()) == 1


def test_points_that_differ_in_values_that_no_rule_reads_are_planned_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def counted(*given: object, **named: object) -> object:
        nonlocal calls
        calls += 1
        return plan(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("kit.sweeps.prepare.plan", counted)
    made = prepared(
        tmp_path,
        "[sweep.random]\ncount = 300\n[sweep.random.keys]\nargs.--lr = { log_uniform = [1e-9, 1] }\n"
        "seed = { uniform = [0, 4000000000], integer = true }\n[sweep.grid]\nresources.nodes = [1, 2]\n",
    )
    assert len(made.points) == 600
    assert [len(array.members) for array in made.arrays()] == [300, 300]
    assert calls == 2
    assert f"    {made.points[7].values['args.--lr']}\n" in program(made, 7), "a point's own plan has its own values"


def test_a_point_is_of_the_kind_that_its_own_plan_shows(tmp_path: Path) -> None:
    """Whatever is swept: what the kind says is what the plan of the point itself would say."""
    made = prepared(
        tmp_path,
        "[sweep.grid]\nargs.--lr = [1e-3, -1, 'a', '$HOME', true, [1, 2]]\nargs.--batch-size = [64, 128]\n"
        "env.A = ['x', '~/y']\nresources.nodes = [1, 2]\nvar.free = [1, 2]\nname = ['a', 'b']\n",
    )
    assert len(made.points) == 96
    assert [kind_of(run.plan) for run in made.runs] == list(made.kinds)
    assert len(set(made.kinds)) > 4


def test_an_option_that_a_rule_reads_is_checked_at_each_point(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        prepared(tmp_path, "[sweep.grid]\nargs.--lr = [1, 2]\nargs.--batch-size = [64, 63, 'many', 128, 62]\n")
    found = {fault.problem.split(" ")[1]: fault.file.rpartition(": ")[2] for fault in caught.value.faults}
    assert found == {"63": "points 1,6", "takes": "points 2,7", "62": "points 4,9"}
