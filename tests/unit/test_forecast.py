"""Forecasts of `kit submit`: the program's options, its memory, the room for its checkpoints, earlier runs."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kit.errors import ConfigError
from kit.forecast import free_space, gpt_program_options, past_runs, rank_memory, submit_forecast
from kit.forecast.free_space import Room
from kit.forecast.gpt_program_options import GptTraining
from kit.forecast.submit_forecast import Duration, Fit, Outlook
from kit.record import manifest


def _read(launcher: str, *args: str, ranks: int = 1, gpus: bool = False, every: int = 0) -> GptTraining | None:
    script = "train.py" if launcher == "fsdp" else "/kit/run/code/train_gpt.py"
    return gpt_program_options.read_training(launcher, script, args, ranks=ranks, every=every, gpus=gpus)


def test_options_and_their_defaults() -> None:
    found = _read("ddp", "--layers", "8", "--dim=512", "--heads", "8", "--batch-size=64", "--accumulate", "2", ranks=4)
    assert found
    assert (found.shape.layers, found.shape.dim, found.shape.context) == (8, 512, 128)
    assert (found.tokens, found.steps, found.every) == (8 * 128, 200, 0)
    # What the program itself reports of a model of 4 layers of 512 (its `start` record).
    assert _known("ddp", "--layers=4", "--dim=512", "--heads=8").shape.parameters == 17_043_968


def _known(launcher: str, *args: str, ranks: int = 1, gpus: bool = False) -> GptTraining:
    found = _read(launcher, *args, ranks=ranks, gpus=gpus)
    assert found
    return found


@pytest.mark.parametrize(
    "args",
    [
        ("--init-from", "llama"),
        ("--data", "books"),
        ("--config", "c.toml"),
        ("--compile",),
        ("--dim", "wide"),
        ("--dim", "130"),
        ("positional",),
        ("--batch-size", "33", "--accumulate", "2"),
    ],
)
def test_nothing_is_said_of_what_is_not_known(args: tuple[str, ...]) -> None:
    assert _read("ddp", *args) is None


def test_other_programs_are_not_read() -> None:
    assert gpt_program_options.read_training("ddp", "train.py", (), ranks=1, every=0, gpus=False) is None
    assert gpt_program_options.read_training("megatron", "train.py", (), ranks=1, every=0, gpus=False) is None


# Peaks of resident memory that runs reported (metrics.jsonl, memory_bytes; torch 2.13 for CPUs, Debian 12): launcher, ranks, bytes,
# options. `python -m benchmarks forecast` compares with runs of its own, of other shapes.
MEASURED = [
    ("ddp", 1, 347_881_472, "--layers 1 --dim 32 --heads 2 --context 16 --batch-size 1"),
    ("ddp", 1, 720_621_568, "--layers 4 --dim 512 --heads 8 --context 16 --batch-size 1"),
    ("ddp", 1, 1_950_720_000, "--layers 8 --dim 768 --heads 8 --context 16 --batch-size 1"),
    ("ddp", 1, 1_123_053_568, "--layers 4 --dim 128 --heads 4 --context 256 --batch-size 32"),
    ("ddp", 1, 1_789_116_416, "--layers 8 --dim 128 --heads 4 --context 256 --batch-size 32"),
    ("ddp", 1, 1_162_387_456, "--layers 4 --dim 256 --heads 4 --context 256 --batch-size 16"),
    ("ddp", 2, 726_614_016, "--layers 4 --dim 512 --heads 8 --context 16 --batch-size 2"),
    ("fsdp", 2, 1_298_000_000, "--layers 8 --dim 768 --heads 8 --context 16 --batch-size 2"),
    # The heap of the first differed from run to run: 650, 661, 676 and 684 MB.
    ("fsdp", 1, 667_900_000, "--layers 6 --dim 192 --heads 4 --context 256 --batch-size 12 --recompute"),
    ("fsdp", 1, 667_889_664, "--layers 3 --dim 320 --heads 5 --context 256 --batch-size 8 --recompute"),
    ("fsdp", 1, 716_877_824, "--layers 4 --dim 256 --heads 4 --context 128 --batch-size 24 --recompute"),
    ("fsdp", 1, 636_723_200, "--layers 12 --dim 128 --heads 4 --context 256 --batch-size 12 --recompute"),
    ("fsdp", 2, 526_270_464, "--layers 5 --dim 160 --heads 4 --context 256 --batch-size 16 --recompute"),
    ("fsdp", 1, 586_108_928, "--layers 8 --dim 192 --heads 4 --context 256 --batch-size 6 --recompute"),
]


@pytest.mark.parametrize(("launcher", "ranks", "measured", "options"), MEASURED)
def test_memory_is_what_runs_took(launcher: str, ranks: int, measured: int, options: str) -> None:
    assert rank_memory.of_rank(_known(launcher, *options.split(), ranks=ranks)) == pytest.approx(measured, rel=0.05)


def test_what_a_rank_cannot_do_without() -> None:
    alone = _known("ddp", "--layers=4", "--dim=512", "--heads=8")
    assert rank_memory.held(alone) == 16 * 17_043_968
    assert (
        rank_memory.held(_known("fsdp", "--layers=4", "--dim=512", "--heads=8", "--batch-size=32", ranks=4))
        == 4 * 17_043_968
    )
    assert rank_memory.of_rank(alone) > rank_memory.held(alone)


def _outlook(**more: Any) -> Outlook:
    known: dict[str, Any] = {
        "file": "job.toml", "fit": None, "checkpoint": None, "keep": 3, "room": None, "duration": None, "limit": None,
        "goes_on": False,
    }  # fmt: skip
    return Outlook(**{**known, **more})


def test_what_cannot_fit_is_refused_and_what_may_not_is_warned_of() -> None:
    fit = Fit(rank=3_000_000_000, ranks=4, held=2_000_000_000, limit=7_000_000_000, on_gpu=False)
    with pytest.raises(ConfigError, match=r"job\.toml: args: 4 ranks hold 8\.0 GB .* the job has 7\.0 GB of a node"):
        submit_forecast.refuse(_outlook(fit=fit))
    close = Fit(rank=3_000_000_000, ranks=4, held=2_000_000_000, limit=12_000_000_000, on_gpu=False)
    submit_forecast.refuse(_outlook(fit=close))
    (warned,) = submit_forecast.warnings(_outlook(fit=close))
    assert "may not fit" in warned.problem
    roomy = Fit(rank=3_000_000_000, ranks=4, held=2_000_000_000, limit=24_000_000_000, on_gpu=False)
    assert submit_forecast.warnings(_outlook(fit=roomy)) == []
    one = Fit(rank=90_000_000_000, ranks=8, held=81_000_000_000, limit=80_000_000_000, on_gpu=True)
    with pytest.raises(ConfigError, match=r"a rank holds 81\.0 GB .* of a GPU"):
        submit_forecast.refuse(_outlook(fit=one))


def test_a_run_that_is_longer_than_its_limit_is_warned_of_unless_it_goes_on() -> None:
    took = Duration(whole=4000.0, first_checkpoint=60.0, steps=100, step=39.0, basis="run-1", exact=True)
    (warned,) = submit_forecast.warnings(_outlook(duration=took, limit=3600.0))
    assert warned.key == "resources.time"
    assert submit_forecast.warnings(_outlook(duration=took, limit=3600.0, goes_on=True)) == []


def test_a_disk_that_holds_fewer_checkpoints_than_are_kept_is_warned_of() -> None:
    (warned,) = submit_forecast.warnings(_outlook(checkpoint=10**9, room=Room(free=3 * 10**9, by="free")))
    assert warned.problem == "room for 3 checkpoints (3.0 GB free), and 4 exist at one time"
    assert submit_forecast.warnings(_outlook(checkpoint=10**9, room=Room(free=4 * 10**9, by="free"))) == []


def test_what_is_known_is_said_and_no_more() -> None:
    assert submit_forecast.sentences(_outlook()) == []
    took = Duration(whole=4000.0, first_checkpoint=600.0, steps=100, step=39.0, basis="run-1", exact=True)
    fit = Fit(rank=3_000_000_000, ranks=4, held=2_000_000_000, limit=24_000_000_000, on_gpu=False)
    said = submit_forecast.sentences(
        _outlook(fit=fit, checkpoint=2 * 10**9, room=Room(free=10**11, by="free"), duration=took), start=None
    )
    assert said == [
        "about 3.0 GB of memory a rank, 12.0 GB of 24.0 GB on a node",
        "first checkpoint 2.0 GB after about 10 min; 100.0 GB free: room for 50",
        "1 h 7 min after its start (100 steps at 39 s, as run-1)",
    ]
    steady = replace(took, least=3700.0, most=4300.0)
    assert submit_forecast.sentences(_outlook(duration=steady)) == said[2:]
    (unsteady,) = submit_forecast.sentences(_outlook(duration=replace(took, least=3000.0, most=5400.0)))
    assert unsteady == "45 min to 1 h 39 min after its start (100 steps at 39 s, as run-1; its steps were not steady)"
    noon = datetime(2026, 11, 22, 12, 0).timestamp()
    (line,) = submit_forecast.sentences(_outlook(duration=took), start=noon)
    assert line == f"ends about 13:06, {said[2]}"
    (line,) = submit_forecast.sentences(_outlook(duration=replace(took, least=3000.0, most=5400.0)), start=noon)
    assert line == f"ends between 12:45 and 13:39, {unsteady}"


QUOTA = """\
Disk quotas for user ada (uid 1000):
     Filesystem   space   quota   limit   grace   files   quota   limit   grace
          /home 9000000* 8000000 10000000 1795394654      12       0       0       0
       /scratch     500       0       0       0       1       0       0       0
"""
LUSTRE = """\
Disk quotas for usr ada (uid 1000):
     Filesystem  kbytes   quota   limit   grace   files   quota   limit   grace
        /scratch    2048       0    4096       -       3       0       0       -
"""


def test_what_a_quota_leaves() -> None:
    assert free_space.left_of(QUOTA, "/home") == [1_000_000 * 1024]
    assert free_space.left_of(QUOTA, "/scratch") == []
    assert free_space.left_of(LUSTRE, "/scratch") == [2048 * 1024]


def test_free_space_of_a_folder_that_will_be(tmp_path: Path) -> None:
    found = free_space.under(tmp_path / "runs" / "new" / "checkpoints", env={})
    assert found
    assert found.free > 0


def _past(runs_dir: Path, name: str, records: list[dict[str, Any]], args: tuple[str, ...]) -> None:
    folder = runs_dir / name
    (folder / "state").mkdir(parents=True)
    (folder / "checkpoints/step-00000004").mkdir(parents=True)
    (folder / "checkpoints/step-00000004/state.pt").write_bytes(b"x" * 100)
    (folder / "job.toml").write_text(f"args = {json.dumps(list(args))}\n")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    events = [("start", "00:00:10"), ("end", "00:02:00")]
    (folder / "state/events.jsonl").write_text(
        "".join(
            json.dumps({"time": f"2026-11-22T{at}+0000", "event": event, "job_id": 1, "restart": 0, "exit_code": 0})
            + "\n"
            for event, at in events
        )
    )


def test_what_an_earlier_run_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def record(kind: str, at: str, **values: Any) -> dict[str, Any]:
        return {"kind": kind, "time": f"2026-11-22T{at}+00:00", **values}

    steps = [record("step", f"00:00:{30 + n}", step=n, tokens_per_second=rate, memory_bytes=10**9 + n) for n, rate in
             enumerate((10.0, 400.0, 500.0, 1000.0), 1)]  # fmt: skip
    told = [record("start", "00:00:20", tokens_per_step=1000), *steps, record("saved", "00:00:40", seconds=3.0)]
    told += [record("final", "00:01:50", step=4)]
    args = ("--layers", "4", "--steps", "4")
    _past(tmp_path, "gpt-20261122-000000-aaaa", told, args)
    _past(tmp_path, "gpt-20261121-000000-bbbb", [], args)
    (tmp_path / "gpt-20261123-000000-cccc").mkdir()
    recorded = SimpleNamespace(
        job_name="gpt", cluster="local", launcher="ddp", run_id="gpt-1", world_sizes={"train": 1}
    )
    monkeypatch.setattr(
        manifest, "read_manifest", lambda path: recorded if path.parent.name[-4:] != "cccc" else _missing()
    )
    launcher = SimpleNamespace(script="train_gpt.py")
    decisions = SimpleNamespace(site=SimpleNamespace(runs_dir=tmp_path), resolved=SimpleNamespace(launcher=launcher))
    plan = SimpleNamespace(
        job=SimpleNamespace(name="gpt", launcher="ddp", args=args, script=None, module=None, command=None),
        decisions=decisions,
        cluster="local",
        run_id="gpt-2",
        world_sizes={"train": 1},
        allocation=SimpleNamespace(gpus_per_node=0),
    )
    newest, older = past_runs.newest(cast(Any, plan))
    assert newest.same
    assert (newest.begins, newest.step, newest.save, newest.whole) == (10.0, 2.0, 3.0, 110.0)
    assert newest.quarters == (2.5, 2.0, 1.0)
    assert (newest.memory, newest.checkpoint) == (10**9 + 4, 100)
    assert newest.ends == pytest.approx(86.0)
    assert older.step is None
    assert older.whole == 110.0


def test_a_time_is_a_span_where_steps_were_not_steady() -> None:
    """By the slowest and the fastest quarter of all runs of the same training, and by their starts."""
    program = gpt_program_options.read_training(
        "ddp", "train_gpt.py", ("--steps", "100", "--eval-every", "0"), ranks=1, every=0, gpus=False
    )
    assert program
    quiet = _run("gpt-2", replace(program, steps=20), begins=10.0, step=1.0, quarters=(1.0, 1.02, 0.99, 1.0))
    took = submit_forecast._duration(program, [quiet])
    assert took
    assert took.whole == pytest.approx(112.0)
    assert took.exact
    assert took.between is None
    busy = _run("gpt-1", replace(program, steps=50), begins=30.0, step=1.4, quarters=(1.0, 1.2, 1.6, 2.0))
    took = submit_forecast._duration(program, [quiet, busy])
    assert took
    assert took.whole == pytest.approx(142.0)
    assert took.basis == "gpt-2"
    assert took.between is not None
    assert list(took.between) == pytest.approx([111.0 / 1.1, 232.0 * 1.1])


def _run(name: str, program: Any, *, begins: float, step: float, quarters: tuple[float, ...]) -> past_runs.PastRun:
    return past_runs.PastRun(
        run_id=name, same=False, program=program, begins=begins, step=step, quarters=quarters, save=None, evaluate=None,
        ends=2.0, whole=None, memory=None, checkpoint=None,
    )  # fmt: skip


def _missing() -> Any:
    from kit.errors import RunError

    raise RunError("none")
