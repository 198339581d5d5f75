"""Reports: what is gathered of run folders, the page, and the page in a real browser."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kit import shell
from kit.hosts import status
from kit.ledger import read_run
from kit.reports import charts, collect, gpu_samples, headline, make_report, page, points, step_times
from kit.schema.sweep import Value
from tests.unit.test_sweep_results import write_sweep

BEGAN = 1_800_000_000.0
AT = "2027-01-15T08:30:00+00:00"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# nvidia-smi dmon -s pucmt -o DT -d 15, two GPUs.
DMON = """\
#Date       Time        gpu    pwr  gtemp  mtemp     sm    mem    enc    dec   mclk   pclk     fb   bar1  rxpci  txpci
#YYYYMMDD   HH:MM:SS    Idx      W      C      C      %      %      %      %    MHz    MHz     MB     MB   MB/s   MB/s
 20270115   08:00:00      0    300     50      -     90     40      0      0   2619   1980  40000     10      1      1
 20270115   08:00:00      1    100     40      -     10     40      0      0   2619    980  20000     10      1      1
 20270115   08:00:15      0      -     50      -    100     40      0      0   2619   1980  40000     10      1      1
 20270115   08:00:15      1    200
"""


def make(run: Path, ranks: int, *, minutes: int = 30) -> Path:
    """A run folder as a job of 8 ranks a node leaves it, that failed after a restart; its monitors looked every five seconds."""
    for name in ("logs", "monitor", "state/failures-1/train-1"):
        (run / name).mkdir(parents=True)
    end = BEGAN + minutes * 60
    manifest = {
        "run_id": run.name, "job_name": "gpt", "launcher": "ddp", "shape": "srun", "cluster": "local", "runtime": "pyxis",
        "image": "/i.sqsh", "image_name": "train", "image_digest": "sha256:" + "a" * 64, "nodes": -(-ranks // 8),
        "world_sizes": {"train": ranks}, "seed": 1, "job_file": "job.toml", "argv": [], "job_id": 7, "user": "ada",
        "submitted_at": datetime.fromtimestamp(BEGAN - 60, UTC).isoformat(), "versions": {},
        "git": {"commit": "c" * 40, "branch": "main", "dirty": True},
    }  # fmt: skip
    (run / "manifest.json").write_text(json.dumps(manifest))
    (run / "job.toml").write_text(f"[resources]\nnodes = {-(-ranks // 8)}\ngpus_per_node = 8\n")
    (run / "workspace.patch").write_text("-old </script><script>alert(1)</script>\n+new\n")
    events: list[tuple[float, str, int, Mapping[str, str]]] = [
        (BEGAN, "start", 0, {"nodes": "n[1-64]"}),
        (BEGAN + 5, "attempt", 0, {"nodes": "", "spare": "0"}),
        (BEGAN + 60, "phase", 0, {"name": "teardown"}),
        (BEGAN + 65, "attempt", 1, {"nodes": "", "spare": "0"}),
        (end, "phase", 1, {"name": "teardown"}),
        (end + 5, "end", 1, {"exit_code": "1"}),
    ]
    lines = [
        json.dumps({"time": "", "epoch": at, "event": name, "job_id": 7, "restart": 0, "attempt": attempt, **values})
        for at, name, attempt, values in events
    ]
    (run / "state" / "events.jsonl").write_text("\n".join(lines) + "\n")
    steps = [
        {"kind": "step", "time": AT, "restart": 1, "step": n, "loss": 9 / (n + 1), "tokens_per_second": 1e5}
        for n in range(2000)
    ]  # fmt: skip
    steps.append({"kind": "step", "time": AT, "restart": 1, "step": 2000, "loss": float("nan")})
    (run / "metrics.jsonl").write_text("\n".join(json.dumps(one) for one in steps))
    for node in range(-(-ranks // 8)):
        mine = range(node * 8, min(ranks, node * 8 + 8))
        looks = [
            f"{BEGAN + at:.6f}\t"
            + "\t".join(f"@{r} {at} compute {BEGAN + at:.3f} {1 + r % 7 / 10:.6f} 1" for r in mine)
            for at in range(70, minutes * 60, 5)
        ]
        (run / "monitor" / f"slurm-7.n{node}.progress").write_text("\n".join(looks) + "\n")
        reports = []
        for r in mine:
            # Twenty seconds of start and seven phases of a second; the rest is work, and rank 3 waits for nobody.
            waits = 1 if r == 3 else 400
            seconds = {"start": 20, "communicate": waits, "compute": minutes * 60 - 97 - waits}
            spent = " ".join(f"{seconds.get(name, 1)}.000" for name in read_run.SPENT)
            life = f"1 {BEGAN + 70:.3f} {BEGAN + 66:.3f} 0.000 0"
            reports.append(f"{end:.3f}\t@{r} 1000 compute {end:.3f} 1.0 1\t{life} {spent}\n")
        (run / "monitor" / f"slurm-7.n{node}.0.spent").write_text("".join(reports))
        (run / "monitor" / f"slurm-7.n{node}.gutil").write_text(DMON)
    (run / "state" / "failures-1" / "train-1" / "rank-3.1").write_text(f"{end} 3 1 n0 \n")
    (run / "logs" / "rank-3.log").write_text("Traceback (most recent call last):\nKeyError: '<lr>'\n")
    (run / "logs" / "batch.log").write_text("the end\n")
    return run


def kit(*words: str, cwd: Path) -> shell.Completed:
    # Slurm is asked of no cluster: `local` is not up here.
    env = {**os.environ, "XDG_DATA_HOME": str(cwd / "data"), "PYDANTIC_DISABLE_PLUGINS": "__all__"}
    return shell.run([sys.executable, "-m", "kit", *words], cwd=cwd, env=env, check=False, timeout=120)


def test_ends_after_which_torchrun_restarted_the_ranks_do_not_end_the_attempt(tmp_path: Path) -> None:
    start = make(tmp_path / "run", 8) / "state" / "failures-1" / "train-1"
    for folder in ("restarted", "restartable"):
        (start / folder).mkdir()
    (start / "restarted" / "rank-2.137.110").write_text("109.1 2 137 n0 \n")
    (start / "restartable" / "rank-1.143").write_text("121.1 1 143 n0 \n")
    (start / "torchrun-starts").write_text("100.5\n110.5\n")
    (one,) = status.read_statuses([tmp_path / "run"], queue=lambda cluster: {})
    found = read_run.records(one, now=time.time()).failures
    assert {(one.rank, one.attempt, one.alone) for one in found} == {(3, 1, False), (2, 1, True), (1, 1, False)}


def test_dmon_is_read_by_its_header() -> None:
    """The mean over a node's GPUs; '-' is not a value, a line that was cut off none either, unknown columns are passed over."""
    found = gpu_samples.parse(DMON.splitlines())
    assert [value for _, value in found["sm"]] == [50.0, 100.0]
    assert [value for _, value in found["pwr"]] == [200.0]
    assert [value for _, value in found["pclk"]] == [1480.0, 1980.0]
    assert found["sm"][1][0] - found["sm"][0][0] == 15
    assert set(found) == set(gpu_samples.COLUMNS)
    assert gpu_samples.parse(["# gpu pwr", "0 100"]) == {}, "without -o DT there is no time"


def test_step_times_are_cut_into_stretches(tmp_path: Path) -> None:
    found = step_times.read_step_times(make(tmp_path / "r", 16))
    assert found is not None
    assert list(found.rows) == [str(rank) for rank in range(16)]
    assert len(found.rows["0"]) <= step_times.STRETCHES + 1
    assert found.rows["3"][0] == pytest.approx(1.3)


def test_a_look_is_drawn_back_to_the_look_before(tmp_path: Path) -> None:
    """The monitor looks every six seconds; a minute without a look, as between two starts of a job, stays empty."""
    (tmp_path / "monitor").mkdir()
    times = [*range(0, 31, 6), *range(90, 115, 6)]
    looks = [f"{BEGAN + at:.6f}\t@0 {at} compute {BEGAN + at:.3f} {at / 10:.1f} 1\n" for at in times]
    (tmp_path / "monitor" / "slurm-7.n0.progress").write_text("".join(looks))
    found = step_times.read_step_times(tmp_path)
    assert found is not None
    row = [found.rows["0"][int(at / found.length)] for at in range(115)]
    assert [at for at in range(115) if row[at] is None] == pytest.approx(list(range(31, 79)), abs=2)
    assert row[20] == pytest.approx(2.4), "of the look at 24 s"


def test_stragglers_and_curves(tmp_path: Path) -> None:
    run = make(tmp_path / "r", 16)
    assert [one["rank"] for one in collect._stragglers(run)] == [3]
    curves = collect.read_curves(run)
    assert len(curves["loss"]) <= 403
    assert curves["loss"][-1] == [2000, None], "JSON has no NaN"


def test_a_report_of_512_ranks(tmp_path: Path) -> None:
    """One file below two megabytes, and the same as data. What a run holds cannot end the script that holds it."""
    make(tmp_path / "runs" / "gpt-1", 512)
    done = kit("report", "runs/gpt-1", "-o", "out.html", cwd=tmp_path)
    if "vl-convert" in done.stderr:
        pytest.skip("vl-convert-python is not installed: pip install 'slurm-kit[report]'")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "out.html").read_text()
    assert len(text.encode()) < 2_000_000
    data = json.loads((tmp_path / "out.json").read_text())
    assert data["kind"] == "run"
    assert len(data["runs"][0]["step_times"]["rows"]) == 512
    assert len(data["runs"][0]["gpus"]) == 64
    assert "<script>alert" not in text
    assert not re.search(r'(src|href)="(https?:)?//', text)


def test_a_page_without_the_library_is_refused_with_a_command(tmp_path: Path) -> None:
    code = "import sys\nsys.modules['vl_convert'] = None\nsys.argv[0] = 'kit'\nfrom kit.cli import main\nmain()\n"
    done = shell.run([sys.executable, "-c", code, "report"], cwd=tmp_path, check=False, timeout=60)
    assert done.returncode == 4
    assert done.stderr.endswith("vl-convert-python is not installed\n  try: pip install 'slurm-kit[report]'")
    assert list(tmp_path.iterdir()) == []


def test_a_page_has_an_ending(tmp_path: Path) -> None:
    done = kit("report", "-o", "out.pdf", cwd=tmp_path)
    assert (done.returncode, "try: kit" in done.stderr or "-o out.html" in done.stderr) == (2, True)


def test_a_sweep_has_a_table_a_best_point_and_a_link_to_each(tmp_path: Path) -> None:
    """A metric that is not a number is none; both commands know a sweep by its folder."""
    tried: list[tuple[dict[str, Value], list[dict[str, object]], int | None]] = [
        ({"args.--lr": lr, "args.--kind": kind}, [{"kind": "final", "step": 1, "loss": loss}], 0)
        for lr, kind, loss in ((0.1, "a", 0.5), (0.01, "b", 0.2), (1.0, "a", float("nan")))
    ]
    write_sweep(tmp_path / "runs", tried)
    # Where no Slurm is, none is asked: the points' cluster has no file.
    found = make_report.report(["digits-1"], [tmp_path / "runs"], queue=lambda _: {}, now=BEGAN)
    assert (found["kind"], found["keys"], found["metric"]) == ("sweep", ["lr", "kind"], "loss")
    assert [row["best"] for row in found["table"]] == [True, False, False]
    assert found["table"][0]["cells"][:3] == ["point 1", "0.01", "b"]
    assert {row["id"] for row in found["table"]} == {run["id"] for run in found["runs"]}
    assert json.dumps(found, allow_nan=False)
    text = page.html(found, "")
    assert all(f'<details id="{run["id"]}">' in text and f'href="#{run["id"]}"' in text for run in found["runs"])
    places = points.place_of([0.01, 0.1, 1.0])
    assert [places(lr) for lr in (0.01, 0.1, 1.0)] == pytest.approx([0.0, 0.5, 1.0]), "rates are on a log scale"
    places = points.place_of([10, 20, 30])
    assert [places(one) for one in (10, 20, 30)] == pytest.approx([0.0, 0.5, 1.0])


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt install chromium")
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("several", [False, True])
def test_in_a_real_browser(tmp_path: Path, width: int, several: bool) -> None:
    """Every chart is drawn, nothing is wider than the window, the console is empty, and nothing is asked for."""
    names = ["runs/gpt-1", "runs/gpt-2"] if several else ["runs/gpt-1"]
    for name in names:
        make(tmp_path / name, 16)
    done = kit("report", *names, "-o", "out.html", cwd=tmp_path)
    if "vl-convert" in done.stderr:
        pytest.skip("vl-convert-python is not installed: pip install 'slurm-kit[report]'")
    assert done.returncode == 0, done.stderr
    # It answers for the page: what was drawn, and what it would have had to scroll for. A frame is as narrow as a phone.
    (tmp_path / "frame.html").write_text(
        f"<iframe id=f src=out.html width={width} height=900></iframe><script>"
        "addEventListener('message', (e) => { document.body.dataset.answer = e.data; });</script>"
    )
    text = (tmp_path / "out.html").read_text()
    ask = (
        "<script>const wait = setInterval(() => {"
        "if (document.documentElement.dataset.drawn !== 'all') return; clearInterval(wait);"
        "parent.postMessage(JSON.stringify({charts: document.querySelectorAll('[data-chart]').length,"
        "drawn: document.querySelectorAll('[data-chart] :is(canvas, svg.marks)').length,"
        "scrolls: document.documentElement.scrollWidth,"
        "fetched: performance.getEntriesByType('resource').map((e) => e.name).filter((n) => !n.startsWith('data:'))}), '*');"
        "}, 50);</script>"
    )
    before, _, after = text.rpartition("</body>")
    (tmp_path / "out.html").write_text(before + ask + after)
    argv = [
        str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
        "--enable-logging=stderr", "--virtual-time-budget=20000", "--window-size=1400,1000",
        "--host-resolver-rules=MAP * ~NOTFOUND", "--dump-dom", f"file://{tmp_path / 'frame.html'}",
    ]  # fmt: skip
    done = shell.run(argv, check=False, timeout=120)
    found = re.search(r'data-answer="([^"]*)"', done.stdout)
    assert found, done.stdout[-2000:] + done.stderr[-2000:]
    answer = json.loads(found[1].replace("&quot;", '"'))
    assert answer["drawn"] == answer["charts"] > 2
    assert answer["scrolls"] <= width
    assert answer["fetched"] == []
    assert [line for line in done.stderr.splitlines() if ":CONSOLE" in line] == []


def test_many_nodes_are_a_heat_map() -> None:
    """Lines of more nodes than colours can be told apart would say nothing; each value is in the cell of its time."""
    few = charts.of_nodes({f"n{n}": [[0.0, n], [100.0, n]] for n in range(24)}, "use, %")
    assert few["mark"]["type"] == "line"
    many = charts.of_nodes({f"n{n}": [[0.0, n], [100.0, None], [100.0, n + 1]] for n in range(25)}, "use, %")
    assert many["mark"]["type"] == "rect"
    row = many["data"]["values"][3]
    assert (row["rank"], row["v"][0], row["v"][100]) == ("n3", 3.0, 4.0)


def test_two_runs_say_why_they_differ(tmp_path: Path) -> None:
    for name in ("gpt-1", "gpt-2"):
        make(tmp_path / "runs" / name, 8)
    (tmp_path / "runs" / "gpt-2" / "job.toml").write_text("[resources]\nnodes = 1\ngpus_per_node = 4\n")
    found = make_report.report(["gpt-1", "gpt-2"], [tmp_path / "runs"], queue=lambda _: {}, now=BEGAN)
    assert any("gpus_per_node" in line for line in found["diff"])
    assert "Why they differ" in page.html(found, "")


def test_every_account_has_a_colour() -> None:
    from kit.ledger.time_accounts import Account
    from kit.reports.charts import COLOURS

    assert set(COLOURS) == set(Account)
    assert page.Chart is not None


def test_the_first_screen_answers_four_questions(tmp_path: Path) -> None:
    """Did it work, how good is it, what did it cost, what next: before the curves, in words as well as in colours."""
    make(tmp_path / "runs" / "gpt-1", 16)
    found = make_report.report(["gpt-1"], [tmp_path / "runs"], queue=lambda _: {}, now=BEGAN + 1900)
    top = headline.make_headline(found["runs"][0])
    assert (top.kind, top.words, top.wall) == ("bad", "It did not work", "31 min 5 s")
    (loss,) = top.figures
    assert (loss.last, loss.best) == ("not a number at step 2,000", "best 0.0045 at step 1,999")
    text = page.html(found, "")
    first = text[text.index('id="end"') : text.index('id="curves"')]
    asked = ["Did it work?", "How good is it?", "What did it cost?", "What next?"]
    places = [first.index(question) for question in asked]
    assert places == sorted(places)
    assert "KeyError" in first
    assert found["runs"][0]["why"]["next"] in first
    assert "goodput" in first
    assert text.index('id="curves"') < text.index('id="time"')


def test_a_finished_run_worked_and_one_that_waits_has_no_loss(tmp_path: Path) -> None:
    make(tmp_path / "runs" / "gpt-1", 8)
    run = make_report.report(["gpt-1"], [tmp_path / "runs"], queue=lambda _: {}, now=BEGAN)["runs"][0]
    run["facts"]["state"] = "COMPLETED"
    assert (headline.make_headline(run).mark, headline.make_headline(run).words) == ("✓", "It worked")
    run |= {"loss": [], "eval": [], "facts": {**run["facts"], "state": "PENDING"}}
    top = headline.make_headline(run)
    assert (top.kind, top.words, list(top.figures)) == ("calm", "Waits in the queue", [])


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.4, "0 s"), (59.6, "1 min 0 s"), (3661, "1 h 1 min"), (200_000, "2 d 7 h")]
)
def test_a_duration_has_two_units(seconds: float, said: str) -> None:
    assert headline.duration(seconds) == said


def test_one_swept_key_is_a_scatter_and_several_are_axes_with_ticks() -> None:
    rows = [
        {"point": n, "id": f"p{n}", "lr": lr, "kind": "ab"[n % 2], "loss": 1 / (n + 1)}
        for n, lr in enumerate((1e-4, 1e-2, 1))
    ]
    one = points.chart(rows, ["lr"], "loss", "min")
    assert (one["mark"]["type"], one["encoding"]["x"]["scale"]["type"]) == ("point", "log")
    assert one["encoding"]["y"]["scale"].get("type") is None, "a third is no reason for a log scale"
    assert one["encoding"]["x"]["title"] == "lr"
    words = points.chart(rows, ["kind"], "loss", "min")
    assert words["encoding"]["x"]["type"] == "nominal"
    several = points.chart(rows, ["lr", "kind"], "loss", "max")
    ticks = {(tick["axis"], tick["label"]): tick["place"] for tick in several["layer"][1]["data"]["values"]}
    assert ticks["lr", "0.01"] == pytest.approx(0.5)
    assert {("kind", "a"), ("kind", "b"), ("loss", "0.333"), ("loss", "0.667"), ("loss", "1")} <= set(ticks)
    assert several["layer"][0]["encoding"]["color"]["scale"]["reverse"] is False


def test_lines_are_readable_on_both_pages() -> None:
    """WCAG 2.2, 1.4.11: 3:1 for what must be seen, on the page's white and on its dark grey."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    for colour in (*charts.LINES, *points._WORST_TO_BEST):
        for back in ("#ffffff", "#161616"):
            low, high = sorted((luminance(colour), luminance(back)))
            assert (high + 0.05) / (low + 0.05) >= 3, (colour, back)
