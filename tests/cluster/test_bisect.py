"""`kit bisect` finds what was planted: a commit, a key, a node. The program is a few lines and needs no torch."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kit import shell
from kit.images import image_lock
from tests.cluster import image_lab
from tests.cluster.conftest import lab_on
from tests.cluster.image_lab import needs_root
from tests.cluster.lab import Lab
from tests.support import REPO

pytestmark = pytest.mark.cluster

# Its loss is wrong where the code, a key or a node makes it so.
PROGRAM = """
import array, json, os, sys
import part
loss = 1.0 + part.ERROR
if os.environ.get("OPTION_7") == "b":
    loss += 1
if os.path.exists("/wrong"):
    loss += 1
tensor = array.array("f", [0.25] * 4)
if os.environ["SLURMD_NODENAME"] == os.environ.get("WRONG_NODE"):
    memoryview(tensor).cast("B")[6] ^= 0x80  # one bit of the second number: 0.25 becomes 0.125
loss *= sum(tensor)
rank = int(os.environ["SLURM_PROCID"])
with open(os.path.join(os.environ["KIT_RUN_DIR"], "metrics.jsonl"), "a") as out:
    record = {"kind": "final", "time": "t", "restart": 0, "rank": rank, "step": 1, "test_loss": loss}
    print(json.dumps(record), file=out)
"""
JOB = """name = "planted"
launcher = "ddp"
script = "program.py"
shape = "srun"
python = "python3"
seed = 1
[resources]
nodes = 1
gpus_per_node = 1
[preflight]
enabled = false
[monitor]
enabled = false
"""
# Sums what the packages of the image say.
IMPORTING = """
import importlib, json, os
loss = 1.0
for number in range(1, 10):
    try:
        loss += importlib.import_module(f"part{number}").ERROR
    except ImportError:
        pass
with open(os.path.join(os.environ["KIT_RUN_DIR"], "metrics.jsonl"), "a") as out:
    print(json.dumps({"kind": "final", "time": "t", "restart": 0, "step": 1, "test_loss": loss}), file=out)
"""
METRIC = ("--metric", "test_loss", "--worse-than", "1.5")


def project_in(lab: Lab, place: Path) -> Lab:
    """The job in a repository of its own."""
    shutil.copytree(lab.project / "clusters", place / "clusters")
    git(place, "init", "--quiet", "--initial-branch=main")
    (place / "job.toml").write_text(JOB)
    (place / "program.py").write_text(PROGRAM)
    (place / "part.py").write_text("ERROR = 0\n")
    commit(place, "begin")
    return replace(lab, project=place)


def git(place: Path, *words: str) -> str:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    return shell.run(["git", "-C", str(place), *identity, *words]).stdout


def commit(place: Path, said: str, *paths: str) -> str:
    git(place, "add", *(paths or ["--all"]))
    git(place, "commit", "--quiet", "--message", said)
    return git(place, "rev-parse", "HEAD")


def run(lab: Lab, *options: str) -> str:
    return lab.run("--no-container", *options).folder.name


def bisect(lab: Lab, *words: str) -> dict[str, Any]:
    argv, env = [sys.executable, "-m", "kit", "bisect", *words, "--json"], {**os.environ, **lab.env}
    found: dict[str, Any] = json.loads(shell.run(argv, cwd=lab.project, env=env, timeout=600).stdout)
    return found


def said_enough(wanted: int, said: str) -> bool:
    """Whether this many runs were sent or judged."""
    return sum(said.count(word) for word in (": job ", ": good: ", ": bad: ")) >= wanted


def killed_when(lab: Lab, words: list[str], enough: Callable[[str], bool], *, more_s: float = 0) -> None:
    """Start a `kit` command, and kill it this many seconds after its output is enough."""
    argv, env = [sys.executable, "-m", "kit", *words], {**os.environ, **lab.env}
    process = subprocess.Popen(argv, cwd=lab.project, env=env, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if enough(said):
            break
    time.sleep(more_s)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, said


def forget_the_job(lab: Lab, good: str) -> None:
    """As if the kill had come between sbatch and the manifest: Slurm has a job that no file names."""
    newest = max((lab.project / "runs").glob("planted-bisect-*"), key=lambda one: one.stat().st_ctime_ns)
    path = newest / "manifest.json"
    made = json.loads(path.read_text())
    assert made["rerun_of"] == good
    path.write_text(json.dumps({**made, "job_id": None}))


def jobs_of(lab: Lab, name: str) -> int:
    """How many jobs Slurm had for runs of a bisection."""
    scripts = lab.slurm("squeue", "--noheader", "--states=all", "--format=%o").splitlines()
    return sum(name in one for one in scripts)


@pytest.mark.timeout(600)
def test_one_commit_of_32(lab: Lab, tmp_path: Path) -> None:
    lab, place = project_in(lab, tmp_path), tmp_path
    # A file that git does not track is in every run all the same.
    (place / "notes.txt").write_text("beside the code")
    good = run(lab)
    for number in range(1, 33):
        (place / "part.py").write_text(f"ERROR = {int(number >= 21)}\nNUMBER = {number}\n")
        sha = commit(place, f"change {number}", "part.py")
        if number == 21:
            planted = sha
    bad = run(lab)
    (place / "part.py").write_text("the folder is at work on something else\n")
    before = git(place, "status", "--porcelain")
    found = bisect(lab, good, bad, *METRIC)
    assert found["conclusion"] == (
        f"commit {planted[:10]} (change 21) made it bad: with it test_loss 2, without it test_loss 1"
    )
    assert (found["good"]["state"], found["bad"]["state"]) == (20, 21)
    assert (found["rounds"], found["runs"]) == (5, 7), "as docs/guides/bisect.md says; six rounds at most"
    tree = Path(found["bad"]["run_dir"]) / "workspace"
    assert "NUMBER = 21" in (tree / "part.py").read_text()
    assert (tree / "notes.txt").read_text() == "beside the code"
    assert git(place, "status", "--porcelain") == before, "nothing of the repository was written"
    text = lab.kit("diff", Path(found["good"]["run_dir"]).name, Path(found["bad"]["run_dir"]).name).stdout
    assert "\n    +ERROR = 1\n" in text
    # The same words again: the answer is known.
    assert bisect(lab, good, bad, *METRIC) == found
    # The other way round a commit is taken back, and the smaller number is the worse one.
    back = bisect(lab, bad, good, *METRIC)
    said = f"taking back commit {planted[:10]} (change 21) made it bad: with it test_loss 1, without it test_loss 2"
    assert back["conclusion"] == said
    refused = lab.kit("bisect", good, bad, "--metric", "test_loss", "--worse-than", "5", check=False)
    assert refused.returncode == 2
    assert "it does not tell the good run (1) from the bad one (2)" in refused.stderr


@pytest.mark.timeout(600)
def test_one_key_of_12_through_kills(lab: Lab, tmp_path: Path) -> None:
    lab = project_in(lab, tmp_path)
    options = [[f"env.OPTION_{n}={side}" for n in range(12)] for side in "ab"]
    good, bad = (run(lab, *(w for one in words for w in ("--set", one))) for words in options)
    for wanted in (1, 4):
        killed_when(lab, ["bisect", good, bad, *METRIC], partial(said_enough, wanted))
        forget_the_job(lab, good)
    found = bisect(lab, good, bad, *METRIC)
    said = 'the key env.OPTION_7 ("a" -> "b") made it bad: with it test_loss 2, without it test_loss 1'
    assert found["conclusion"] == said
    assert (found["rounds"], found["runs"]) == (3, 5), "as docs/guides/bisect.md says; five rounds at most"
    name = Path(found["good"]["run_dir"]).name.rpartition("-")[0]
    runs = [one for one in Path(found["good"]["run_dir"]).parent.iterdir() if one.name.startswith(name)]
    assert len(runs) == found["runs"]
    assert jobs_of(lab, name) == found["runs"], "no state was submitted twice"


@pytest.mark.timeout(600)
def test_a_commit_that_cannot_be_submitted_is_passed_over(lab: Lab, tmp_path: Path) -> None:
    lab, place = project_in(lab, tmp_path), tmp_path
    good = run(lab)
    (place / "program.py").unlink()
    commit(place, "the program is gone")
    (place / "program.py").write_text("raise SystemExit(3)\n")
    last = commit(place, "the program is back")
    bad = run(lab)
    found = bisect(lab, good, bad)  # by their exit codes
    assert found["conclusion"].startswith(
        "one of 2 changes made it bad, and no state between them could be tried: commit "
    )
    assert found["conclusion"].endswith(f" to commit {last[:10]} (the program is back)")
    assert found["runs"] == 2
    record = next((place / "runs" / ".bisections").glob("*/bisect.json"))
    (passed,) = (one for one in json.loads(record.read_text())["points"] if one["verdict"] == "untestable")
    assert "it cannot be submitted" in passed["said"]


@pytest.fixture
def eight(train_cpu: Path, tmp_path: Path) -> Iterator[Lab]:
    (tmp_path / "lab").mkdir()
    with lab_on("eight", 8, train_cpu, tmp_path / "lab") as lab:
        yield lab


@pytest.mark.timeout(600)
def test_one_node_of_four(eight: Lab, tmp_path: Path) -> None:
    eight = project_in(eight, tmp_path / "code")
    names = [node.name for node in eight.cluster.nodes]
    wide = ("--set", "resources.nodes=4", "--set", f"env.WRONG_NODE={names[6]}")
    good, bad = (run(eight, *wide, "--set", f"slurm.nodelist={','.join(mine)}") for mine in (names[:4], names[4:]))
    check = tmp_path / "check.sh"
    check.write_text("""#!/bin/sh\n! grep -qv '"test_loss": 1.0}' "$1/metrics.jsonl"\n""")
    check.chmod(0o755)
    found = bisect(eight, good, bad, "--check", str(check), "--points", "2")
    said = f"node {names[6]} instead of {names[2]} made it bad: with it check.sh ended with 1, "
    assert found["conclusion"] == f"{said}without it check.sh ended with 0"
    assert (found["rounds"], found["runs"]) == (2, 5), "as docs/guides/bisect.md says; three rounds at most"
    text = eight.kit("diff", good, bad).stdout
    assert "test_loss diverges at step 1 on rank 2: 1 -> 0.875" in text


PROGRAMS = (
    *image_lab.PROGRAMS,
    "mv",
    "cp",
    "grep",
    "sed",
    "awk",
    "stat",
    "tr",
    "cut",
    "head",
    "tail",
    "sort",
    "date",
    "id",
    "flock",
)


def python_image(folder: Path) -> Path:
    """A root filesystem with this machine's own Python, and the programs that a rank of the kit needs."""
    root = image_lab.rootfs(folder, (*PROGRAMS, "/usr/bin/python3"))
    version = shell.run(["/usr/bin/python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).stdout
    library = Path(f"/usr/lib/python{version}")
    left_out = shutil.ignore_patterns("test", "tests", "idlelib", "lib2to3", "tkinter", "pydoc_data", "__pycache__")
    shutil.copytree(library, root / library.relative_to("/"), ignore=left_out, symlinks=True)
    for module in (library / "lib-dynload").glob("*.so"):
        image_lab.copy_libraries(module, root)
    shutil.copytree("/usr/share/python-wheels", root / "usr/share/python-wheels")
    (root / "usr/bin").mkdir(exist_ok=True)
    (root / "usr/bin/python3").symlink_to("/bin/python3")
    (root / "tmp").mkdir()
    return root


def wheel(place: Path, name: str, version: str, error: int) -> None:
    """A wheel of one module."""
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(place / f"{name}-{version}-py3-none-any.whl", "w") as made:
        made.writestr(f"{name}.py", f"ERROR = {error}\n")
        made.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        made.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        made.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


@pytest.mark.skipif(shell.which("bwrap") is None, reason="bubblewrap is not installed: make setup")
@pytest.mark.skipif(
    not Path("/usr/share/python-wheels").is_dir(), reason="no pip of Debian's: apt-get install python3-pip-whl"
)
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_wheel_of_an_image_lock(lab: Lab, train_cpu: Path, tmp_path: Path) -> None:
    """Eight packages differ, one of them new and one gone; the wheels lie in a folder, and there is no index and no engine."""
    lab, place, store, house = (
        project_in(lab, tmp_path / "code"),
        tmp_path / "code",
        tmp_path / "store",
        tmp_path / "wheels",
    )
    own = {"DOCKER_HOST": "unix:///no/such/socket", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(house)}
    lab = replace(lab, env={**lab.env, **own, "PIP_CONFIG_FILE": os.devnull, "XDG_CACHE_HOME": str(tmp_path / "cache")})
    cluster = place / "clusters" / f"{lab.cluster.name}.toml"
    cluster.write_text(cluster.read_text().replace(str(train_cpu), str(store)))
    (place / "program.py").write_text(IMPORTING)
    (place / ".kitignore").write_text("containers/\n")
    house.mkdir()
    for number in range(1, 9):
        wheel(house, f"part{number}", "1.0", 0)
        wheel(house, f"part{number}", "2.0", int(number == 6))
    lab.kit("import-image", str(python_image(tmp_path / "root")), "--name", "small", "--store", str(store))
    lab.kit("init", "--image", "own", "--from", "small")
    file = place / "containers/own/Dockerfile"
    file.write_text(file.read_text().replace("RUN export ", "RUN export PIP_BREAK_SYSTEM_PACKAGES=1 "))
    runs = []
    for version, numbers in (("1.0", range(1, 8)), ("2.0", range(2, 9))):
        (place / "containers/own/requirements.txt").write_text("".join(f"part{n}=={version}\n" for n in numbers))
        lab.kit("build-image", "own", "--store", str(store))
        runs.append(lab.run("--set", "image=own").folder.name)
    # Killed while an image is built: both ends are known by then.
    killed_when(
        lab, ["bisect", *runs, *METRIC], lambda said: said.count(": good: ") + said.count(": bad: ") == 2, more_s=1.0
    )
    found = bisect(lab, *runs, *METRIC)
    said = "the package part6 (1.0 -> 2.0) made it bad: with it test_loss 2, without it test_loss 1"
    assert found["conclusion"] == said
    # Nine changes: the packages, and the rest of the image.
    assert (found["rounds"], found["runs"]) == (3, 5), "as docs/guides/bisect.md says; five rounds at most"
    assert found["left_out"] == []
    before, after = (json.loads((Path(found[end]["run_dir"]) / "manifest.json").read_text()) for end in ("good", "bad"))
    assert before["image_digest"] != after["image_digest"]
    text = lab.kit("diff", before["run_id"], after["run_id"], check=False).stdout
    assert "~ pip:part6 1.0 -> 2.0" in text
    assert "part5" not in text


@needs_root
@pytest.mark.timeout(600)
def test_an_image_of_one_name_in_two_states(lab: Lab, train_cpu: Path, tmp_path: Path) -> None:
    """The good run's lock is no more in containers/: it is kept in the run folder."""
    lab, store = project_in(lab, tmp_path / "code"), tmp_path / "store"
    cluster = lab.project / "clusters" / f"{lab.cluster.name}.toml"
    cluster.write_text(cluster.read_text().replace(str(train_cpu), str(store)))
    source = tmp_path / "image.sqsh"
    shutil.copy(
        train_cpu / "sha256" / f"{image_lock.read_lock(REPO / 'containers/train-cpu/image.lock').sha256}.sqsh", source
    )
    runs = []
    for number in range(2):
        (tmp_path / "wrong").write_text("a file that mksquashfs appends")
        if number:
            shell.run(["mksquashfs", str(tmp_path / "wrong"), str(source), "-quiet", "-no-progress"])
        lab.kit("import-image", str(source), "--name", "own", "--store", str(store), *["--relock"][:number])
        runs.append(lab.run("--set", "image=own").folder.name)
    found = bisect(lab, *runs, *METRIC)
    assert re.fullmatch(
        r"the image \(own sha256:\w+ -> own sha256:\w+\) made it bad: with it test_loss 2, without it test_loss 1",
        found["conclusion"],
    )
    assert [one["kind"] for one in found["changes"]] == ["image"]
    assert found["rounds"] == 1
