"""The command line as people meet it: groups, completion, a default cluster, clean JSON, and a message after Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kit import config, shell
from kit.cli import GROUPS, completion_candidates
from kit.cli.init import init
from kit.cli.wait_and_follow import goes_on
from kit.errors import ConfigError, KitError, RunError
from kit.files import hold_signals
from kit.images import image_lock
from kit.record import manifest
from kit.schema.run_paths import RunPaths
from kit.slurm.client import JobId, QueuedJob
from kit.sweeps import cancel_by_name
from kit.version import __version__
from kit.workflow import dependencies
from tests.support import make_lock, make_site, plan_of, write_job

# As the installed program starts; completion takes its variable's name from it.
KIT = "import sys; sys.argv[0] = 'kit'; from kit.__main__ import main; main()"
JOB = 'name = "digits"\nlauncher = "ddp"\n[container]\nruntime = "bare"\n'


def kit(*args: str, cwd: Path, env: dict[str, str] | None = None) -> shell.Completed:
    """No Slurm, and no user's own settings, unless `env` brings them."""
    clean = {"PATH": "/usr/bin:/bin", "HOME": str(cwd), "COLUMNS": "80", **(env or {})}
    return shell.run([sys.executable, "-c", KIT, *args], cwd=cwd, env=clean, check=False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with two runs, of jobs 7 and 8, and 4 ranks each."""
    job = write_job(tmp_path, JOB)
    for number in (7, 8):
        folder = tmp_path / "runs" / f"digits-{number}"
        (folder / "state").mkdir(parents=True)
        (folder / "logs").mkdir()
        plan = plan_of(job, site=make_site(run_dir=folder, containers=False))
        made = manifest.make_manifest(plan, job_file=job, user="ada", now=datetime.now(UTC), slurm_version="22.05")
        made.model_copy(update={"job_id": number}).write(RunPaths(folder).manifest)
        RunPaths(folder).job.write_text(job.read_text())
    return tmp_path


def test_help_has_every_command_in_a_group(tmp_path: Path) -> None:
    lines = kit("--help", cwd=tmp_path).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    group, seen = "", []
    for line in lines:
        if line.startswith("╭─ "):
            group = line.split()[1]
        elif (words := line.strip("│ ").split()) and line.startswith("│ ") and line[2] != " " and group in GROUPS:
            seen.append((group, words[0]))
    assert seen == [(group, name) for group, commands in GROUPS.items() for name in commands]


@pytest.mark.parametrize("words", [["--version"], ["checkpoint-size", "--help"], ["nope"]])
def test_a_command_imports_no_other_command(words: list[str], tmp_path: Path) -> None:
    code = KIT.replace("main()", "import atexit; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); main()")
    done = shell.run([sys.executable, "-c", code, *words], cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, check=False)
    loaded = {name for name in done.stderr.split() if name.startswith("kit.cli.")}
    own = {"kit.cli.checkpoints"} if words[0] == "checkpoint-size" else set()
    commands = {f"kit.cli.{place.partition('.')[0]}" for group in GROUPS.values() for place in group.values()}
    assert "kit.cli.command_group" in loaded
    assert loaded & commands == own


def test_completing_a_name_imports_only_the_commands_that_match(project: Path) -> None:
    code = KIT.replace("main()", "import atexit; atexit.register(lambda: print(*sys.modules)); main()")
    env = {"_KIT_COMPLETE": "complete_bash", "COMP_WORDS": "kit trus", "COMP_CWORD": "1", "PATH": "/usr/bin:/bin"}
    done = shell.run([sys.executable, "-c", code], cwd=project, env=env, check=False)
    assert done.stdout.splitlines()[0] == "trust"
    assert not {"kit.cli.render", "kit.cli.submit", "kit.cli.runs", "kit.cli.images"} & set(done.stdout.split())


def test_an_unchanged_project_is_read_without_its_models(project: Path) -> None:
    """The content of a manifest and of the clusters' files is cached. pydantic itself is imported by typer's parser."""
    listing = "import atexit; atexit.register(lambda: print(*sys.modules)); main()"
    argv = [sys.executable, "-c", KIT.replace("main()", listing)]
    env = {"PATH": "/usr/bin:/bin", "HOME": str(project)}
    for name in ("digits-7", "digits-8"):
        RunPaths(project / "runs" / name).events.write_text('{"event": "end", "exit_code": "0"}\n')
    for words in (["status", "digits-7"], ["status"], ["runs"]):
        shell.run([sys.executable, "-c", KIT, *words], cwd=project, env=env)
        done = shell.run([*argv, *words], cwd=project, env=env)
        assert "digits-7" in done.stdout or "digits-8" in done.stdout
        assert not {"kit.schema.cluster", "kit.schema.job", "jinja2"} & set(done.stdout.split())


ENDED = """
import sys
sys.argv = ["kit", "runs"]
import kit.answers.named_runs
def ended(*_, **__): raise {}
kit.answers.named_runs.folders = ended
from kit.cli import main
main()
"""


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        ("KeyboardInterrupt", 130, "interrupted\n"),
        ("BrokenPipeError(32, 'Broken pipe')", 141, ""),
        ("EOFError", 130, "\ninterrupted\n"),
        ("__import__('typer').Exit(3)", 3, ""),
        ("__import__('typer').Abort()", 130, "interrupted\n"),
        ("OSError(2, 'No such file', 'x')", 1, "kit: error: x: No such file\n"),
    ],
)
def test_how_a_command_ends(tmp_path: Path, raised: str, code: int, said: str) -> None:
    argv = [sys.executable, "-c", ENDED.format(raised)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (code, said)


def test_listing_runs_imports_no_planning(tmp_path: Path) -> None:
    code = "import sys; from kit.cli import app; app(['runs'], standalone_mode=False); print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "kit.record.find_runs" in done.stdout
    assert [
        name for name in done.stdout.splitlines() if name.startswith(("kit.planning", "kit.schema.job", "jinja2"))
    ] == []


def test_the_version(tmp_path: Path) -> None:
    assert kit("--version", cwd=tmp_path).stdout == f"kit {__version__}"


def completed(words: str, cwd: Path) -> list[str]:
    """What bash is offered after these words."""
    env = {"_KIT_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = kit(cwd=cwd, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("kit sta", {"stacks", "status"}),
        ("kit logs dig", {"digits-7", "digits-8"}),
        ("kit cancel digits-7 digits-8", {"digits-8"}),
        ("kit render -c infi", {"infiniband"}),
        ("kit build-image train", {"train-cpu", "train-gpu"}),
        ("kit submit --set resources.nod", {"resources.nodes="}),
        ("kit init --launcher dd", {"ddp"}),
        ("kit logs nothing-of-that-name", set()),
    ],
)
def test_the_shell_completes(project: Path, words: str, offered: set[str]) -> None:
    """Without any program of Slurm in PATH."""
    assert set(completed(words, project)) == offered


def test_a_completer_that_meets_a_fault_offers_nothing(project: Path) -> None:
    (project / "clusters").mkdir()
    (project / "clusters" / "broken.toml").write_text("no TOML")
    assert completion_candidates.runs("") == [] or completion_candidates.runs("nothing") == []


def test_the_default_cluster(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(project / "config"))
    monkeypatch.delenv("KIT_CLUSTER", raising=False)
    assert config.default_cluster(project) == "local"
    (project / "clusters").mkdir()
    (project / "clusters" / "ours.toml").write_text("")
    assert config.default_cluster(project) == "ours", "the only one there is"
    (project / "clusters" / "theirs.toml").write_text("")
    assert config.default_cluster(project) == "local"
    own = project / "config" / "kit"
    own.mkdir(parents=True)
    (own / "config.toml").write_text('cluster = "pod"\n')
    assert config.default_cluster(project) == "pod"
    monkeypatch.setenv("KIT_CLUSTER", "aws-efa")
    assert config.default_cluster(project) == "aws-efa"
    assert config.cluster_entry("infiniband", project).name == "infiniband", "-c comes first"
    monkeypatch.setenv("KIT_CLUSTER", "infinibant")
    with pytest.raises(ConfigError, match=r"KIT_CLUSTER: cluster: .*infinibant.*'infiniband'"):
        config.cluster_entry(None, project)


def test_a_dry_run_as_json(project: Path) -> None:
    for words in (["render"], ["submit", "--dry-run"]):
        done = kit(*words, "--no-container", "--json", cwd=project)
        shown = json.loads(done.stdout)
        assert {"batch.sh", "worker.sh"} <= shown["files"].keys()
        assert shown["argv"][0] == "sbatch"
    written = json.loads(kit("render", "--no-container", "--json", "-o", "made", cwd=project).stdout)
    assert "made/batch.sh" in written["written"]


def test_json_beside_logs_is_refused(project: Path) -> None:
    done = kit("submit", "--json", "--follow", cwd=project)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--json and --follow" in done.stderr


def test_logs_as_json_and_of_ranks_that_are_not_there(project: Path) -> None:
    done = kit("logs", "digits-7", cwd=project)
    assert "nothing is logged yet" in done.stderr
    (project / "runs/digits-7/logs/rank-1.log").write_text('loss "0.5"\n')
    assert json.loads(kit("logs", "digits-7", "-r", "1", "--json", cwd=project).stdout) == {
        "schema_version": 1,
        "source": "rank-1",
        "line": 'loss "0.5"',
    }
    refused = kit("logs", "digits-7", "-r", "77", cwd=project)
    assert refused.returncode == 2
    assert "no rank 77" in refused.stderr


def test_run_ids_stay_whole_in_a_narrow_terminal(project: Path) -> None:
    lines = kit("runs", cwd=project, env={"COLUMNS": "20"}).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["run", "digits-7", "digits-8"]


def queued(*numbers: int) -> Callable[[str], dict[JobId, QueuedJob]]:
    jobs: dict[JobId, QueuedJob] = {
        n: QueuedJob(job_id=n, state="RUNNING", reason="", nodes="n1", elapsed="1:00") for n in numbers
    }
    return lambda cluster: jobs


def test_several_runs_are_cancelled_at_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[JobId, ...]] = []
    monkeypatch.setattr("kit.submission.cancel.client.cancel", lambda *jobs, env, gently=False: told.append(jobs))
    folders = [project / "runs"]
    with pytest.raises(RunError, match="nope"):
        cancel_by_name.cancel(["digits-7", "nope"], folders, queue=queued(7, 8))
    assert told == [], "none, where one name is wrong"
    done = cancel_by_name.cancel(["digits-7", "8"], folders, queue=queued(7, 8))
    assert told == [(7, 8)], "Slurm is told once"
    assert [str(one) for one in done] == ["job 7 cancelled", "job 8 cancelled"]
    (ended,) = cancel_by_name.cancel(["digits-7"], folders, queue=queued())
    assert (ended.jobs, ended.state) == ((), "LOST")


def test_after_a_job_that_slurm_does_not_know(project: Path, tmp_path: Path) -> None:
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(
        '#!/bin/sh\n[ "$3" = 4711 ] || [ "$3" = 0 ] || { echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; }\n'
    )
    scontrol.chmod(0o755)
    env = {"PATH": f"{scontrol.parent}:/usr/bin:/bin"}
    after = dependencies.parse("4711")
    assert dependencies.options([after], [project / "runs"], queue=queued(), env=env)[-1] == "--dependency=afterok:4711"
    for number in ("99999", "0"):
        with pytest.raises(RunError, match=f"Slurm knows no job {number}"):
            dependencies.options([dependencies.parse(number)], [project / "runs"], queue=queued(), env=env)


def test_a_first_job_is_one_that_plans(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "train.py").write_text("print(1)\n")
    for_cpus = kit("init", "--script", "train.py", "--cluster", "pod", "--image", "frameworks-cpu", cwd=tmp_path)
    assert for_cpus.returncode == 0, for_cpus.stderr
    job = config.load_job(tmp_path / "job.toml", cluster="pod").job
    assert (job.image_name, job.resources.gpus_per_node) == ("frameworks-cpu", 0)
    mine = tmp_path / "containers" / "mine"
    image_lock.write_lock(mine / image_lock.FILE, make_lock("mine"))
    (mine / "image.toml").write_text('[base]\nreference = "x/y"\n')
    words = ("init", "--script", "train.py", "--cluster", "pod", "--image", "mine", "--force")
    done = kit(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "kit submit -c pod --follow" in done.stderr
    job = config.load_job(tmp_path / "job.toml", cluster="pod").job
    assert (job.script, job.image_name, job.resources.gpus_per_node) == ("train.py", "mine", 8)
    before = (tmp_path / "job.toml").read_text()
    wrong: tuple[dict[str, Any], ...] = (
        {"image": "nope"}, {"script": Path("nope.py")}, {"cluster": "nope"}, {"launcher": "nope"}, {"force": False},
    )  # fmt: skip
    for options in wrong:
        with pytest.raises(KitError, match=r"nope|exists already"):
            init(tmp_path, **{"force": True, **options})
        assert (tmp_path / "job.toml").read_text() == before


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C as Python has it, also where the tests run in a shell's background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_what_goes_on_after_ctrl_c(ctrl_c: None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), goes_on("digits-7"):
        signal.raise_signal(signal.SIGINT)
    assert capsys.readouterr().err == (
        "the run continues: 'kit logs -f digits-7' shows it, 'kit cancel digits-7' ends it\n"
    )


def test_a_step_that_may_not_end_half_done(ctrl_c: None) -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), hold_signals.uninterrupted():
        signal.raise_signal(signal.SIGINT)
        done.append("the job's number is written")
    assert done
    with hold_signals.uninterrupted():
        pass


CLEANING = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from kit.cli import interrupts
interrupts.watch()
try:
    try:
        print("working", flush=True)
        time.sleep(60)
    finally:
        time.sleep(60)
except KeyboardInterrupt:
    sys.exit(interrupts.end())
"""


IN_A_DESTRUCTOR = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from kit import cli
from kit.cli import interrupts
class Dropped:
    def __del__(self):
        signal.raise_signal(int(sys.argv[1]))
def work():
    try:
        Dropped()
        time.sleep(60)
    except KeyboardInterrupt:
        return interrupts.end()
cli._run = work
try:
    cli.main()
finally:
    print("cleaned up")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_a_destructor_is_not_lost(number: signal.Signals) -> None:
    """Python drops the exception of a destructor. A Ctrl-C while a Popen was dropped was lost in that way."""
    argv = [sys.executable, "-c", IN_A_DESTRUCTOR, str(int(number))]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stdout) == (128 + number, "cleaned up\n"), done.stderr
    assert "ignored" not in done.stderr


def test_a_second_ctrl_c_stops_the_cleaning_up() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CLEANING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout and process.stderr
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline() == "interrupted: cleaning up; another Ctrl-C stops that too\n"
        process.send_signal(signal.SIGINT)
        said = process.stderr.read().splitlines()
    assert process.returncode == 130
    assert said == ["interrupted again: the next start of kit removes what this one leaves", "interrupted"]


def test_a_command_of_a_group_has_its_options_whatever_was_imported_before() -> None:
    """A shared option that was declared before typer was imported was missing."""
    code = "import sys, kit.cli.results\nsys.argv = ['kit', 'cluster', 'status', '--help']\nfrom kit.cli import main\nmain()"
    done = shell.run([sys.executable, "-c", code])
    assert "--json" in done.stdout
