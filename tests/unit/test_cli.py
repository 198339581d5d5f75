"""The one place that prints errors: codes by class, no traceback, one line per fault."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from kit import data_folders, shell
from kit.cli import cluster, init
from kit.cli.submit_messages import following
from kit.slurm import embedded
from tests.support import REPO, plan_of, write_job


def kit(*args: str, cwd: Path) -> shell.Completed:
    return shell.run([sys.executable, "-m", "kit", *args], cwd=cwd, check=False)


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("nosuch",), 2, "No such command 'nosuch'"),
        (("render", "--nope"), 2, "No such option"),
        (("cluster", "up", "--gpus", "2"), 2, "Did you mean --gpus-per-node?"),
        (("submit", "--from", "3"), 2, "No such option"),
        (("render",), 3, "job.toml: no such file"),
        (("schema", "jb"), 2, "did you mean 'job'?"),
        (("status", "nothing-of-that-name"), 7, "no such run"),
        (("cluster", "status", "--name", "nope"), 6, "kit cluster up"),
        (("cluster", "detect", "../x"), 2, "'../x': not a name"),
    ],
)
def test_exit_code_by_class(tmp_path: Path, args: tuple[str, ...], code: int, said: str) -> None:
    (tmp_path / ".git").mkdir()
    done = kit(*args, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_every_fault_on_a_line_of_its_own(tmp_path: Path) -> None:
    write_job(tmp_path, 'name = "X"\nlauncher = "ddp"\nimge = "x"\n')
    done = kit("render", cwd=tmp_path)
    assert done.returncode == 3
    assert len([line for line in done.stderr.splitlines() if "job.toml: " in line]) == 2


@pytest.mark.parametrize("up", [False, True])
def test_a_first_job_says_to_start_the_cluster_only_where_it_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, up: bool
) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(embedded, "find", lambda name: object() if up else None)
    steps = init._next_steps(tmp_path, "train-cpu", "local")
    assert ("kit cluster up" in steps) == (not up)
    assert steps[-1] == f"kit submit {tmp_path} --follow"


# Of a launcher of roles, the roles decide the number of nodes.
@pytest.mark.parametrize(("launcher", "nodes"), [("srun", 2), ("python", 1), ("sft", None)])
def test_a_first_job_has_as_many_nodes_as_its_launcher_can_use(
    tmp_path: Path, launcher: str, nodes: int | None
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "train.py").write_text("print(1)\n")
    script = [] if launcher == "sft" else ["--script", "train.py"]
    done = kit("init", *script, "--launcher", launcher, "-c", "local", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    job = tomllib.loads((tmp_path / "job.toml").read_text())
    assert job["resources"].get("nodes") == nodes


def test_a_submit_says_how_to_follow(tmp_path: Path) -> None:
    job = write_job(tmp_path, 'name = "x"\nlauncher = "ddp"\n')
    assert following(plan_of(job)) == ["kit logs digits-1 -f"]
    roles = '[roles.server]\ncommand = ["a"]\npolicy = "service"\n[roles.main]\ncommand = ["b"]\n'
    job.write_text(f'name = "x"\nlauncher = "roles"\nimage = "train-cpu"\n{roles}')
    assert following(plan_of(job)) == [
        "kit logs digits-1 -f",
        "kit logs digits-1 server -f",
        "kit logs digits-1 main -f",
    ]


def test_the_points_of_a_sweep_are_shown_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    done = kit("sweep", str(REPO / "examples" / "sweep"), "--dry-run", "--no-container", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert [point["index"] for point in shown["points"]] == list(range(12))
    assert [path.name for path in tmp_path.iterdir()] == [".git"]


def test_a_dry_run_shows_each_roles_options_or_writes_all(tmp_path: Path) -> None:
    words = ["submit", str(REPO / "examples" / "rl"), "--dry-run", "--no-container", "--cluster", "infiniband"]
    done = kit(*words, "--set", "rl.gpus_per_node=8", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for role in ("trainer", "orchestrator", "inference"):
        assert f"# ==> configs/{role}.toml <==" in done.stdout
    assert "batch_size = 512" in done.stdout
    assert kit(*words, "-o", "made", cwd=tmp_path).returncode == 0
    assert (tmp_path / "made" / "configs" / "trainer.toml").exists()
    refused = kit(*(word for word in words if word != "--dry-run"), "-o", "made", cwd=tmp_path)
    assert refused.returncode == 2
    assert "--output works only together with --dry-run" in refused.stderr


def test_the_users_own_folders_are_no_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    inside = tmp_path / "kit" / "clusters" / "local"
    inside.mkdir(parents=True)
    assert data_folders.project(inside) == inside


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    done = shell.run(["bash", "-c", f"{sys.executable} -m kit schema job | head -n 1"], cwd=tmp_path)
    assert done.stdout == "{"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("args", "into", "said"),
    [
        ("schema job", "/dev/full", "cannot write the output: No space left on device"),
        ("runs", "/dev/full", "cannot write the output: No space left on device"),
        ("schema job --output full", "/dev/null", "full/job.schema.json: No space left on device"),
        ("schema job --output file/x", "/dev/null", "file/x: Not a directory"),
        ("init file/x", "/dev/null", "file/x: Not a directory"),
        ("render -o file/x", "/dev/null", "file/x: Not a directory"),
    ],
)
def test_the_system_s_errors_are_one_line(tmp_path: Path, args: str, into: str, said: str) -> None:
    """Only the kit's own errors were caught: thirty lines of traceback for a full disk."""
    write_job(tmp_path, 'name = "x"\nlauncher = "ddp"\n[container]\nruntime = "bare"\n')
    (tmp_path / "file").touch()
    if "full/" in said:  # a link out of the job's folder is warned of wherever a job is planned
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "job.schema.json").symlink_to("/dev/full")
    done = shell.run(["bash", "-c", f"{sys.executable} -m kit {args} >{into}"], cwd=tmp_path, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert said in done.stderr


def test_a_closed_stdout_takes_no_other_files_number(tmp_path: Path) -> None:
    write_job(tmp_path, 'name = "x"\nlauncher = "ddp"\n[container]\nruntime = "bare"\n')
    words = f"{sys.executable} -m kit schema job >&-; {sys.executable} -m kit nosuch 2>&-; exit $?"
    done = shell.run(["bash", "-c", words], cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


def test_what_errors_quote_does_not_reach_the_terminal_raw(tmp_path: Path) -> None:
    done = kit("render", "a\x1b]0;owned\x07\u202e.toml", cwd=tmp_path)
    assert done.returncode == 3
    assert "a\\x1b]0;owned\\x07\\u202e.toml" in done.stderr


@pytest.mark.parametrize("has_file", [False, True])
def test_an_embedded_cluster_without_a_file_says_what_submit_needs(
    has_file: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "clusters").mkdir()
    text = 'embedded = true\n[node]\ncpus = 8\n[container]\nruntime = "auto"\n'
    if has_file:
        (tmp_path / "clusters" / "mine.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(embedded, "up", lambda *_, **__: SimpleNamespace(shape="1 nodes", slurm_conf="/lab/slurm.conf"))
    done = CliRunner().invoke(cluster.app, ["up", "--name", "mine"])
    assert (done.exit_code, done.stdout) == (0, "export SLURM_CONF=/lab/slurm.conf\n")
    said = done.stderr.splitlines()
    if has_file:
        assert said == ["cluster mine: 1 nodes"]
    else:
        assert said[1].startswith("clusters/mine.toml is not there, and `kit submit --cluster mine` needs it")
        assert "\n".join(line.strip() for line in said[2:]) + "\n" == text
