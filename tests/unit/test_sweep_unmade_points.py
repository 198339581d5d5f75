"""Run folders of a sweep's points are made when the points start; until then every reader finds them by their template."""

from __future__ import annotations

import filecmp
import json
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kit import data_folders, shell
from kit.errors import RunError
from kit.health import why
from kit.health.run_record import Record
from kit.hosts import clusters, status
from kit.hosts.local import LocalHost
from kit.ledger import find as ledgers
from kit.record import find_runs, index, manifest, unmade_points
from kit.reports.make_report import report
from kit.schema.run_paths import RunPaths
from kit.slurm.client import JobId, QueuedJob
from kit.submission import cancel
from kit.sweeps import find, lost_arrays, point_templates
from kit.sweeps import submit as sending
from kit.sweeps.points.program_options import text
from kit.sweeps.prepare import PreparedSweep, prepare_sweep
from kit.sweeps.record import NO_JOB, SweepPaths, read_sweep
from kit.sweeps.results.results import gather
from tests.support import write_job

JOB = 'name = "digits"\nlauncher = "ddp"\nargs = ["--epochs", "3"]\n[resources]\nnodes = 1\ngpus_per_node = 1\n'
SWEEP = (
    "[sweep]\nmetric = 'loss'\n[sweep.grid]\nargs.--lr = [1e-5, 0.25, -3, 'Plain.text']\nseed = [1, 4294967295]\n"
    "[sweep.set]\nvar.note = 'x'\n"
)
NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
# What Slurm's commands say here: every submission is job 41.
SBATCH = '#!/bin/bash\ncase "$*" in *--version*) echo slurm 22.05.8 ;; *--test-only*) ;; *) echo 41 ;; esac\n'


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sbatch", "scontrol"):
        (tools / name).write_text(SBATCH)
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "here.toml").write_text(
        '[node]\ncpus = 8\ngpus = 4\nmemory = "64G"\n[container]\nruntime = "bubblewrap"\n'
        f"[paths]\nruns = '{tmp_path}/runs'\n"
    )


def prepared(folder: Path, sweep: str = SWEEP, *, job: str = JOB) -> PreparedSweep:
    return prepare_sweep(write_job(folder, job + sweep), cluster="here", containers=False, now=NOON)


@pytest.fixture
def made(tmp_path: Path) -> PreparedSweep:
    """A submitted sweep of eight points in one array, job 41; none has started."""
    ready = prepared(tmp_path)
    sending.submit(ready, now=NOON)
    return ready


def run_task(sweep: Path, task: int, *, array: int = 0) -> shell.Completed:
    """What the array's task does on its node before the batch script."""
    folder = sweep / "arrays" / str(array)
    argv = ["bash", str(folder / "make_point.sh"), str(folder), str(task), "41"]
    return shell.run(argv, env={"PATH": "/usr/bin:/bin"}, check=False)


def queue(state: str, tasks: range = range(8)) -> Callable[[str], dict[JobId, QueuedJob]]:
    jobs: dict[JobId, QueuedJob] = {
        f"41_{task}": QueuedJob(job_id=f"41_{task}", state=state, reason="", nodes="", elapsed="") for task in tasks
    }
    return lambda _: jobs


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def test_nothing_is_written_for_a_point_but_a_line(made: PreparedSweep) -> None:
    paths = SweepPaths(made.folder)
    assert [*paths.points.iterdir()] == []
    assert [one.name for one in paths.templates.iterdir()] == ["0"]
    lines = (paths.arrays / "0/points").read_text().splitlines()
    assert [line.split()[:2] for line in lines] == [[str(n), "0"] for n in range(8)]
    assert (paths.arrays / "0/job").read_text() == "41\n"
    assert f"--output={paths.arrays}/0/logs/%a.log\n" in (paths.arrays / "0/batch.sh").read_text()
    assert read_sweep(made.folder).arrays[0].members == tuple(range(8))


def test_a_started_point_has_the_folder_that_kit_sweep_made_before(
    made: PreparedSweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the byte, with the modes: the same sweep with folders at submit is the model."""
    for task in range(8):
        assert run_task(made.folder, task).stdout == str(SweepPaths(made.folder).point(task))
    kept = made.folder.rename(tmp_path / "kept")
    monkeypatch.setattr(point_templates, "_FEWEST", 1000)
    sending.submit(made, now=NOON)
    for number in range(8):
        name = f"points/{made.folder.name}.{number}"
        ours, model = kept / name, made.folder / name
        assert files(ours) == files(model)
        plain = [one for one in files(model) if (model / one).is_file()]
        _, different, unreadable = filecmp.cmpfiles(ours, model, plain, shallow=False)
        assert (different, unreadable) == ([], [])
        for one in files(model):
            assert (ours / one).stat().st_mode == (model / one).stat().st_mode, one
        facts = json.loads((ours / "manifest.json").read_text())
        assert (facts["job_id"], facts["array_task"]) == (41, number)
        assert facts["point"]["args.--lr"] == [1e-5, 0.25, -3, "Plain.text"][number // 2]


def test_points_with_values_that_a_shell_would_read_have_their_folders_at_once(tmp_path: Path) -> None:
    """In one array with points that have a template."""
    hostile = ["a b", "$(touch /tmp/x)", "&", "/", "'", '"', "x\\ny"]
    (tmp_path / "mine.py").touch()
    listed = json.dumps(["a1", "b2", "c3", "d4", "e5", *hostile])
    ready = prepared(tmp_path, f"[sweep.grid]\nargs.--name = {listed}\n", job=f'script = "mine.py"\n{JOB}')
    sending.submit(ready, now=NOON)
    paths = SweepPaths(ready.folder)
    assert {one.name for one in paths.points.iterdir()} == {paths.name(n) for n in range(5, 12)}
    for number, value in enumerate(hostile, 5):
        assert run_task(ready.folder, number).returncode == 0
        facts = manifest.read_manifest(RunPaths(paths.point(number)).manifest)
        assert (facts.point["args.--name"], facts.slurm_id) == (value, f"41_{number}")
    assert run_task(ready.folder, 4).returncode == 0
    assert "--name\n    e5\n" in (paths.point(4) / "program.sh").read_text()


def test_data_that_the_manifest_has_the_digest_of_is_not_a_plain_value(tmp_path: Path) -> None:
    ready = prepared(tmp_path, f"[sweep.grid]\nargs.--data = {[f'd{n}' for n in range(6)]!r}\n")
    sending.submit(ready, now=NOON)
    assert len([*SweepPaths(ready.folder).points.iterdir()]) == 6


@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
def test_lists_show_points_without_a_folder(made: PreparedSweep, state: str) -> None:
    asked = queue(state)
    for task in (2, 5):
        run_task(made.folder, task)
    for _ in range(2):  # the second time from the index
        found = status.of_facts(find_runs.find_all([made.folder.parent]), queue=asked)
        assert sorted(one.run_dir.name for one in found) == sorted(f"{made.folder.name}.{n}" for n in range(8))
        assert {one.state for one in found} == {state}
        assert {one.job_id for one in found} == {f"41_{task}" for task in range(8)}
        assert {one.facts.run_id for one in found} == {one.run_dir.name for one in found}
        assert {one.facts.job_name for one in found} == {"digits"}
        assert {one.facts.submitted_at for one in found} == {NOON.timestamp()}
    assert len([*SweepPaths(made.folder).points.iterdir()]) == 2, "a list makes no folder"
    states = find.states(made.folder, read_sweep(made.folder), queue=asked)
    assert [find.state_of(states[n]) for n in range(8)] == [state] * 8
    assert len(find.active(made.folder, queue=asked)) == 8
    page = report([made.folder.name], [made.folder.parent], queue=asked, now=NOON.timestamp() + 60)
    assert page["kind"] == "sweep"
    results = gather(made.folder, queue=asked)
    assert [row.state for row in results.rows] == [state] * 8
    assert len(ledgers.sweep_points(made.folder.name, [made.folder.parent])) == 8


def test_a_point_that_never_started_is_submitted_again(made: PreparedSweep) -> None:
    """Its folder is made then, as that of every point which is submitted again."""
    record = read_sweep(made.folder)
    states = find.states(made.folder, record, queue=lambda _: {})
    assert find.to_retry(states) == list(range(8))
    again = sending.resubmit(made, record, [3, 4], now=NOON)
    assert [array.members for array in again.arrays] == [tuple(range(8)), (3, 4)]
    paths = SweepPaths(made.folder)
    assert {one.name for one in paths.points.iterdir()} == {paths.name(3), paths.name(4)}
    assert manifest.read_manifest(RunPaths(paths.point(4)).manifest).slurm_id == "41_1"


@pytest.mark.parametrize("by", ["id", "path", "job"])
def test_a_command_that_names_a_point_makes_its_folder(made: PreparedSweep, by: str) -> None:
    point = SweepPaths(made.folder).point(6)
    name = {"id": point.name, "path": str(point), "job": "41_6"}[by]
    assert find_runs.find_one(name, [made.folder.parent]) == point
    assert manifest.read_manifest(RunPaths(point).manifest).slurm_id == "41_6"
    before = point.stat().st_ino
    assert run_task(made.folder, 6).stdout == str(point)
    assert point.stat().st_ino == before, "the task takes the folder that is there"


def test_before_the_array_is_submitted_no_folder_is_made(made: PreparedSweep) -> None:
    """`kit sweep` may end between the folder and sbatch: then the array is in no queue."""
    (made.folder / "arrays/0/job").unlink()
    read_sweep(made.folder).model_copy(update={"arrays": ()}).write(SweepPaths(made.folder))
    point = SweepPaths(made.folder).point(6)
    assert find_runs.find_one(point.name, [made.folder.parent]) == point
    assert not point.exists()
    (one,) = status.read_statuses([point], queue=lambda _: {})
    assert (one.state, one.job_id) == ("SUBMITTED", None)


def test_an_array_without_a_job_in_the_record_is_found_again(
    made: PreparedSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kit sweep` was killed between sbatch and its record."""
    paths = SweepPaths(made.folder)
    (paths.arrays / "0/job").unlink()
    read_sweep(made.folder).with_jobs({0: NO_JOB}).write(paths)
    monkeypatch.setattr("kit.hosts.local.LocalHost.is_up", lambda _host: True)
    monkeypatch.setattr("kit.hosts.local.LocalHost.env", lambda _host, inherit=(): {})
    monkeypatch.setattr("kit.slurm.client.scripts", lambda **_: {str(paths.arrays / "0/batch.sh"): 41})
    assert lost_arrays.noted([paths.point(6)])
    assert read_sweep(made.folder).arrays[0].members == tuple(range(8))
    states = find.states(made.folder, read_sweep(made.folder), queue=queue("PENDING"))
    assert [find.state_of(states[n]) for n in range(8)] == ["PENDING"] * 8


def test_a_point_without_a_folder_is_on_the_cluster_of_its_sweep(made: PreparedSweep) -> None:
    """`kit cancel` of a sweep that waits asked the Slurm of this machine's default, and not the sweep's."""
    assert not SweepPaths(made.folder).point(3).exists()
    host = clusters.host_of_run(SweepPaths(made.folder).point(3))
    assert (host.name, host.shares_files) == ("here", True)


def test_cancelled_before_it_started(made: PreparedSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("kit.slurm.client.cancel", lambda *jobs, **_: asked.extend(jobs))
    run_task(made.folder, 7)
    cancel.cancel(find.active(made.folder, queue=queue("PENDING")), host=LocalHost(name="local"))
    assert sorted(asked) == [f"41_{task}" for task in range(8)]
    assert [one.name for one in SweepPaths(made.folder).points.iterdir()] == [f"{made.folder.name}.7"]
    states = find.states(made.folder, read_sweep(made.folder), queue=lambda _: {})
    assert [find.state_of(states[n]) for n in range(8)] == ["CANCELLED"] * 8
    point = find_runs.find_one(f"{made.folder.name}.3", [made.folder.parent])
    assert RunPaths(point).cancelled_by.read_text().strip()
    (one,) = status.read_statuses([point], queue=lambda _: {})
    assert one.state == "CANCELLED", "also with a folder"


def test_the_output_of_slurm_is_the_points_own_log(made: PreparedSweep) -> None:
    """Slurm opens the file before the script starts; what it says at the end, such as a time limit, goes to the same file."""
    log = made.folder / "arrays/0/logs/2.log"
    log.write_text("from Slurm\n")
    point = Path(run_task(made.folder, 2).stdout)
    with log.open("a") as sink:
        sink.write("CANCELLED DUE TO TIME LIMIT\n")
    assert RunPaths(point).batch_log.read_text() == "from Slurm\nCANCELLED DUE TO TIME LIMIT\n"
    run_task(made.folder, 2)
    assert RunPaths(point).batch_log.samefile(log), "a requeued task goes on in the same file"


def test_a_killed_start_leaves_no_half_a_folder_and_the_next_one_cleans_up(made: PreparedSweep, tmp_path: Path) -> None:
    """kill -9 in the middle: `sed` does not come back."""
    paths = SweepPaths(made.folder)
    tools = tmp_path / "slow"
    tools.mkdir()
    (tools / "sed").write_text('#!/bin/bash\n[[ "$*" == *--in-place* ]] || exec /usr/bin/sed "$@"\nkill -9 "${PPID}"\n')
    (tools / "sed").chmod(0o755)
    array = paths.arrays / "0"
    argv = ["bash", str(array / "make_point.sh"), str(array), "1", "41"]
    done = shell.run(argv, env={"PATH": f"{tools}:/usr/bin:/bin"}, check=False)
    assert done.returncode != 0
    assert [*paths.points.iterdir()] == []
    (left,) = (array / ".making/1").iterdir()
    assert not paths.point(1).exists()
    assert len(index.runs(made.folder.parent)) == 8
    os.utime(left, (1, 1))
    assert run_task(made.folder, 1).returncode == 0
    assert [one.name for one in paths.points.iterdir()] == [paths.name(1)]
    assert [*(array / ".making/1").iterdir()] == []


def test_three_hundred_points_that_start_at_once_have_all_their_run_folders(tmp_path: Path) -> None:
    """No task may read a folder that the others change meanwhile."""
    ready = prepared(tmp_path, f"[sweep.grid]\nargs.--lr = {[n / 1000 for n in range(1, 301)]}\n")
    sending.submit(ready, now=NOON)
    script = str(ready.folder / "arrays/0/make_point.sh")
    gate = tmp_path / "gate"
    starting = (
        f"for task in {{0..299}}; do (until [ -e {gate} ]; do sleep 0.05; done; "
        f"exec bash {script} {ready.folder}/arrays/0 $task 41 >/dev/null) & done; "
        f"touch {gate}; failed=0; for one in $(jobs -p); do wait $one || failed=$((failed + 1)); done; echo $failed failed"
    )
    done = shell.run(["bash", "-c", starting], env={"PATH": "/usr/bin:/bin"}, check=False, timeout=120)
    assert (done.stdout, done.stderr) == ("0 failed", "")
    paths = SweepPaths(ready.folder)
    assert {one.name for one in paths.points.iterdir()} == {paths.name(number) for number in range(300)}
    for number in range(300):
        facts = json.loads(RunPaths(paths.point(number)).manifest.read_text())
        assert facts["point"]["args.--lr"] == (number + 1) / 1000


def test_a_disk_that_takes_nothing(made: PreparedSweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The task ends with a reason in its log, the point is as it was, and a list still shows it."""
    tools = tmp_path / "full"
    tools.mkdir()
    (tools / "cp").write_text("#!/bin/bash\necho 'cp: write: No space left on device' >&2\nexit 1\n")
    (tools / "cp").chmod(0o755)
    array = made.folder / "arrays/0"
    env = {"PATH": f"{tools}:/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_JOB_ID": "41"}
    done = shell.run(["bash", str(array / "batch.sh")], env=env, check=False)
    assert done.returncode == 1
    assert "No space left on device\nthe run folder of task 1 was not made" in done.stderr
    assert [*SweepPaths(made.folder).points.iterdir()] == []
    point = SweepPaths(made.folder).point(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
        assert find_runs.find_one(point.name, [made.folder.parent]) == point
    assert f"kit: {point.name}: its run folder cannot be made: " in capsys.readouterr().err
    (one,) = status.read_statuses([point], queue=queue("PENDING"))
    assert one.state == "PENDING"


def test_the_reason_of_a_point_without_a_run_folder(made: PreparedSweep) -> None:
    """Its task wrote into the array's log, which is the batch log of the folder that `kit why` makes."""
    (made.folder / "arrays/0/logs/1.log").write_text(
        "cp: No space left on device\nthe run folder of task 1 was not made\n"
    )
    unmade_points.make(SweepPaths(made.folder).point(1))
    (one,) = status.read_statuses([SweepPaths(made.folder).point(1)], queue=queue("FAILED"))
    found = why.explain(Record(status=one))
    assert (found.rule, found.next) == ("point-not-made", "kit sweep --retry")
    assert [evidence.text for evidence in found.evidence] == ["the run folder of task 1 was not made"]


def test_a_point_of_another_user_is_listed_and_not_made(made: PreparedSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kit.record.unmade_points._is_own", lambda *_: False)
    point = SweepPaths(made.folder).point(0)
    assert find_runs.find_one(point.name, [made.folder.parent]) == point
    assert not point.exists()
    (one,) = status.read_statuses([point], queue=queue("RUNNING"))
    assert (one.state, one.job_id) == ("RUNNING", "41_0")


@pytest.mark.parametrize("changed", ["token", "word"])
def test_no_token_and_no_word_is_a_program_of_sed(made: PreparedSweep, changed: str) -> None:
    """The point's folder is sed's current one."""
    tokens, points = made.folder / "templates/0/tokens", made.folder / "arrays/0/points"
    if changed == "token":
        program = "x/x/;1s/.*/touch ran/e;s/x"
        tokens.write_text("\n".join([*tokens.read_text().splitlines()[:-1], program, ""]))
    else:
        program = "x/;1s/.*/touch${IFS}ran/e;s/x/x"
        points.write_text(f"{points.read_text().splitlines()[0].rpartition(' ')[0]} {program}\n")
    done = run_task(made.folder, 0)
    assert [*made.folder.rglob("ran")] == []
    assert (done.returncode, SweepPaths(made.folder).point(0).exists()) == (1, False)
    assert "a token or a word has other characters than" in done.stderr


PARTS = (".", "points", "arrays", "arrays/0", "arrays/0/points", "arrays/0/job", "templates", "templates/0", "templates/0/run",
         "templates/0/tokens", "templates/0/files")  # fmt: skip


@pytest.mark.parametrize("part", PARTS)
def test_no_point_is_made_by_a_link(made: PreparedSweep, capsys: pytest.CaptureFixture[str], part: str) -> None:
    """It may lead to an array of this user, from a sweep of another."""
    path = made.folder / part
    path.rename(made.folder.parent.parent / "elsewhere")
    path.symlink_to(made.folder.parent.parent / "elsewhere")
    point = SweepPaths(made.folder).point(0)
    unmade_points.make(point)
    assert not point.exists()
    # An array that is a link is none, and the sweep's folder is another user's sweep.
    assert (
        f"{point.name}: its run folder is not made: {path} is missing, a link, or not yours" in capsys.readouterr().err
    ) == (part not in {".", "arrays/0"})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize("part", PARTS)
def test_no_point_is_made_from_another_users_file(made: PreparedSweep, part: str) -> None:
    os.chown(made.folder / part, 65534, 65534)
    point = SweepPaths(made.folder).point(0)
    unmade_points.make(point)
    assert not point.exists()
    os.chown(made.folder / part, 0, 0)
    unmade_points.make(point)
    assert point.is_dir()


@pytest.mark.parametrize("damage", ["", "0\n", "0 ../../x a\n", "x 0\n", "\xff\n"])
def test_a_damaged_list_names_no_point(made: PreparedSweep, damage: str) -> None:
    path = made.folder / "arrays/0/points"
    path.write_bytes(damage.encode("latin-1"))
    os.utime(path, (2, 2))
    assert unmade_points.lines(str(path.parent)) == ()
    assert index.runs(made.folder.parent) == []
    with pytest.raises(RunError):
        find_runs.find_one(f"{made.folder.name}.0", [made.folder.parent])


def test_a_template_that_does_not_make_its_points_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a plan in which a plain value is more than text. Then the folders are made at submit."""
    monkeypatch.setattr("kit.sweeps.point_templates.text", lambda value: text(value).upper())
    ready = prepared(tmp_path)
    sending.submit(ready, now=NOON)
    assert len([*SweepPaths(ready.folder).points.iterdir()]) == 8
    assert not (ready.folder / "templates").exists()
    assert (ready.folder / "arrays/0/3").is_symlink()


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_the_script_passes_shellcheck(made: PreparedSweep) -> None:
    scripts = [str(made.folder / "arrays/0" / name) for name in ("make_point.sh", "batch.sh")]
    assert shell.run(["shellcheck", *scripts], check=False).stdout == ""


def test_another_machine_sees_and_cancels_points_without_a_folder(made: PreparedSweep, tmp_path: Path) -> None:
    """The programs that `kit` runs on a cluster over ssh, for a sweep that was submitted on its login node."""
    programs = data_folders.packaged() / "templates/remote"
    listing = f'. {programs}/index.sh; cd -- "$1"; records'
    sent = shell.run(["sh", "-c", listing, "sh", str(made.folder.parent)]).stdout.splitlines()
    mirror = tmp_path / "mirror"
    for name in (line.split(" ", 3)[3] for line in sent):
        (mirror / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(made.folder.parent / name, mirror / name)
    found = status.of_facts(find_runs.find_all([mirror]), queue=queue("PENDING"))
    assert {one.job_id for one in found} == {f"41_{task}" for task in range(8)}
    assert {one.state for one in found} == {"PENDING"}
    there = mirror / made.folder.name
    assert len(find.active(there, queue=queue("PENDING"))) == 8
    assert len(ledgers.sweep_points(made.folder.name, [mirror])) == 8

    name = f"{made.folder.name}/points/{made.folder.name}.5"
    cancelling = f"""
kit_environment() {{ :; }}
answer() {{ :; }}
kit_argv() {{ printf 'waiting 41_5 {name}\\n'; }}
RUNS=$1 KIT_USER=ada
. {programs}/cancel.sh
main
"""
    shell.run(["sh", "-c", cancelling, "sh", str(made.folder.parent)])
    states = find.states(made.folder, read_sweep(made.folder), queue=queue("PENDING", range(5)))
    assert [find.state_of(states[n]) for n in range(8)] == ["PENDING"] * 5 + ["CANCELLED", "LOST", "LOST"]


def start_task(sweep: Path, task: int) -> shell.Completed:
    """Runs the copy of the array's script that Slurm keeps."""
    kept = sweep.parent.parent / "slurm_script"
    if not kept.exists():
        kept.write_text((sweep / "arrays/0/batch.sh").read_text())
    env = {"PATH": "/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_JOB_ID": "41"}
    return shell.run(["bash", str(kept)], env=env, check=False)


def _give(path: str) -> Callable[[Path], None]:
    def change(sweep: Path) -> None:
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder to another user")
        os.chown(sweep / path, 65534, 65534)

    return change


def _replace(path: str) -> Callable[[Path], None]:
    """A link to a copy, in its place."""

    def change(sweep: Path) -> None:
        moved = (sweep / path).rename(sweep / "moved")
        (sweep / path).symlink_to(moved)

    return change


def _open(path: str) -> Callable[[Path], None]:
    return lambda sweep: (sweep / path).chmod(0o775)


@pytest.mark.parametrize(
    "change",
    [
        *(_open(path) for path in (".", "arrays", "arrays/0", "arrays/0/make_point.sh", "arrays/0/points", "points")),
        *(_open(f"templates{path}") for path in ("", "/0", "/0/run", "/0/files", "/0/tokens", "/0/run/batch.sh")),
        *(_give(path) for path in (".", "arrays", "arrays/0/make_point.sh", "templates/0/run", "points")),
        _replace("arrays/0/make_point.sh"),
    ],
)
def test_a_waiting_task_runs_nothing_that_others_could_change(
    made: PreparedSweep, change: Callable[[Path], None]
) -> None:
    """C12. A sound task ends with 2: its batch script says that it needs a job."""
    assert start_task(made.folder, 0).returncode == 2
    change(made.folder)
    done = start_task(made.folder, 1)
    assert done.returncode == 72, done.stderr
    assert "nothing" in done.stderr


@pytest.mark.parametrize("change", [_open("."), _open("batch.sh"), _give("."), _give("batch.sh")])
def test_a_requeued_task_does_not_run_a_point_that_others_could_change(
    made: PreparedSweep, change: Callable[[Path], None]
) -> None:
    point = SweepPaths(made.folder).point(0)
    assert start_task(made.folder, 0).returncode == 2
    change(point)
    done = start_task(made.folder, 0)
    assert (done.returncode, "try: kit sweep" in done.stderr) == (72, True), done.stderr


def test_a_task_makes_no_folder_that_the_group_may_write(made: PreparedSweep) -> None:
    """Where the user's umask is 002: into .making/ another user could put a run folder of his own."""
    before = os.umask(0o002)
    try:
        assert run_task(made.folder, 0).returncode == 0
    finally:
        os.umask(before)
    making = made.folder / "arrays/0/.making"
    assert [path.stat().st_mode & 0o022 for path in (making, making / "0")] == [0, 0]
