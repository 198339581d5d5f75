"""Pyxis where it unpacks images: one container for all steps of a job, gone at every end; where it mounts them: none at all."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kit import shell
from tests.cluster.conftest import lab_on
from tests.cluster.lab import Lab
from tests.cluster.test_interactive import kit
from tests.support import REPO

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.pyxis,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"),
]

# Says what it found in its root, and waits; rank 1 dies when it is told to, once.
PROGRAM = """
import os, pathlib, signal, sys, time
run = pathlib.Path(os.environ["KIT_RUN_DIR"])
rank, start = os.environ["RANK"], int(os.environ["KIT_RESTART_COUNT"])
def save(number, _frame):
    time.sleep(1)
    (run / f"saved-{rank}").write_text(str(pathlib.Path("/usr/bin/python3").exists()))
    sys.exit(128 + number)
signal.signal(signal.SIGTERM, save)
root = next(line.split()[3] for line in open("/proc/self/mountinfo") if line.split()[4] == "/")
(run / f"up-{rank}-{start}").write_text(f"{root} {pathlib.Path('/mark').exists()}")
while not (run / "finish").exists():
    if start == 0 and rank == "1" and (run / "die").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.1)
"""
LEFT_OUT = (
    "opt/*",
    "var/*",
    "usr/share/*",
    "usr/lib/gcc*",
    "usr/lib/python3/*",
    "... __pycache__",
    "... perl*",
    "... gconv",
    "... *.pl",
)
JOB = """script = "program.py"
shape = "srun"
image = "small"
python = "/usr/bin/python3"
[preflight]
free_disk_gb = 0
"""


@pytest.fixture(scope="module")
def unpacking(train_cpu: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A project on a cluster whose Pyxis unpacks, with an image that is small enough to be unpacked often."""
    project = tmp_path_factory.mktemp("unpack")
    with lab_on("unpack", 2, project / "store", project) as lab:
        if not lab.cluster.has_pyxis:
            pytest.skip("Pyxis and Enroot are not on this machine")
        set_plugin(lab, "")
        lab.kit(
            "import-image", str(small_image(train_cpu, project)), "--name", "small", "--store", str(project / "store")
        )
        yield lab


def small_image(store: Path, folder: Path) -> Path:
    """Shell and Python of the train-cpu image: few files, which are unpacked and removed in no time on a busy machine too."""
    found = re.search(r'^sha256 = "(\w+)"', (REPO / "containers/train-cpu/image.lock").read_text(), re.MULTILINE)
    assert found
    root, image = folder / "root", folder / "small.sqsh"
    root.mkdir()
    squash = ["mksquashfs", str(root), str(image), "-comp", "zstd", "-Xcompression-level", "1"]
    # In a namespace of its own, which no node started meanwhile inherits, and which takes the mount along.
    mount = ["unshare", "--mount", "bash", "-ec", 'mount -o loop,ro "$1" "$2"; exec "${@:3}"', "mount"]
    source = str(store / "sha256" / f"{found[1]}.sqsh")
    shell.run([*mount, source, str(root), *squash, "-wildcards", "-e", *LEFT_OUT])
    return image


def set_plugin(lab: Lab, options: str) -> None:
    """Give Pyxis these options: slurmstepd reads them at every step."""
    conf = lab.cluster.folder / "plugstack.conf"
    kept = [w for w in conf.read_text().split() if not w.startswith(("use_squashfuse", "container_scope"))]
    conf.write_text(f"{' '.join([*kept, options])}\n")


def containers(lab: Lab) -> list[list[str]]:
    """What `enroot list` says on each node."""
    return [lab.inside(node.name, "enroot", "list").split() for node in lab.cluster.nodes]


def submit(lab: Lab, job: str = "") -> Path:
    """A run whose four ranks are up."""
    lab.write(JOB + job, PROGRAM)
    run = lab.submit("--set", "container.runtime=pyxis")
    lab.wait(lambda: len(list(run.glob("up-*-0"))) == 4, run)
    return run


def roots(lab: Lab, node: str) -> list[Path]:
    """The root folders of a node's containers, as the node sees them."""
    data = str(lab.cluster.layout.node / "enroot" / "data-0")
    return [Path(p) for p in lab.inside(node, "find", data, "-mindepth", "1", "-maxdepth", "1").split()]


def test_unpacked_once_for_all_steps(unpacking: Lab) -> None:
    """The probe unpacked; ranks, ranks started again, and a shell beside them find what was there."""
    lab = unpacking
    run = submit(lab, "[retry]\nin_allocation = 1\n")
    names = containers(lab)
    job, digest = lab.job(run)["JobId"], lab.status(run)["image"]
    for node, there in zip(lab.cluster.nodes, names, strict=True):
        assert re.fullmatch(rf"\['pyxis_kit-{job}-\d+-[0-9a-f]{{12}}'\]", str(there)), there
        for root in roots(lab, node.name):
            lab.inside(node.name, "touch", str(root / "mark"))
    with kit(lab, "shell", "--attach", run.name) as screen:
        screen.expect("shell in the job's container")
        screen.type("ls /mark; exit\n")
        screen.expect("/mark")
        screen.code()
    (run / "die").touch()
    lab.wait(lambda: len(list(run.glob("up-*-1"))) == 4, run)
    assert containers(lab) == names, digest
    for path in run.glob("up-*-1"):
        folder, marked = path.read_text().split()
        assert Path(folder).name == names[0][0]
        assert marked == "True"
    (run / "finish").touch()
    assert lab.wait_end(run)["JobState"] == "COMPLETED"
    assert lab.settled(run) == []
    assert containers(lab) == [[], []]


# What ends a run, its exit code, and how many ranks save; None: as many as get to it.
ENDS: dict[str, tuple[Callable[[Lab, Path], object], int | None, int | None]] = {
    "finish": (lambda _lab, run: (run / "finish").touch(), 0, 0),
    "rank-killed": (lambda _lab, run: (run / "die").touch(), 137, None),
    "cancel": (lambda lab, run: lab.kit("cancel", run.name), 143, 4),
    "scancel": (lambda lab, run: lab.slurm("scancel", lab.job(run)["JobId"]), 143, 4),
    "batch-killed": (lambda lab, run: os.kill(lab.batch(run).pid, signal.SIGKILL), None, 4),
}


@pytest.mark.parametrize(
    ("end", "scope"),
    [
        pytest.param(end, scope, marks=() if end in often else pytest.mark.faults)
        for scope, often in (("global", {"scancel", "batch-killed"}), ("job", {"batch-killed"}))
        for end in ENDS
    ],
)
def test_gone_at_every_end(unpacking: Lab, end: str, scope: str) -> None:
    """With container_scope=job Pyxis removes the container itself. Ranks that save still have their files."""
    lab, (act, code, saved) = unpacking, ENDS[end]
    with plugin(lab, f"container_scope={scope}"):
        run = submit(lab)
        assert [len(there) for there in containers(lab)] == [1, 1]
        act(lab, run)
        lab.wait_end(run)
        # It also removes what a batch script that was killed could not.
        assert lab.status(run)["exit_code"] == code, read(run)
        assert lab.settled(run) == [], read(run)
        found = [path.read_text() for path in run.glob("saved-*")]
        assert found == ["True"] * (len(found) if saved is None else saved)


def test_what_a_killed_job_left_goes_and_a_living_jobs_stays(unpacking: Lab) -> None:
    lab = unpacking
    image = lab.project / "small.sqsh"
    for node in lab.cluster.nodes:
        lab.inside(node.name, "enroot", "create", "--name", "pyxis_kit-999999-1700000000-c0ffee", str(image))
        lab.inside(node.name, "enroot", "create", "--name", "pyxis_mine", str(image))
    try:
        first = submit(lab)
        second = submit(lab)
        (second / "finish").touch()
        lab.wait_end(second)
        there = containers(lab)
        assert all(len(names) == 2 and "pyxis_mine" in names for names in there), there
        assert all(f"pyxis_kit-{lab.job(first)['JobId']}-" in " ".join(names) for names in there)
        (first / "finish").touch()
        lab.wait_end(first)
    finally:
        for node in lab.cluster.nodes:
            lab.inside(node.name, "enroot", "remove", "--force", "pyxis_mine")
    assert lab.settled(first) == []


def test_a_mounted_image_gets_no_name(lab: Lab, runtime_of: Callable[[str], list[str]]) -> None:
    """A name would make Pyxis unpack."""
    options = runtime_of("pyxis")
    if "use_squashfuse=1" not in (lab.cluster.folder / "plugstack.conf").read_text():
        pytest.skip("this Pyxis cannot mount images, or squashfuse is missing")
    lab.write(JOB.replace('image = "small"\n', ""), "print('done')\n")
    run = lab.run(*options)
    assert lab.status(run.folder)["exit_code"] == 0
    assert "Pyxis unpacks" not in run.log("batch")
    assert not (run.folder / "logs" / "container.log").exists()


@contextmanager
def plugin(lab: Lab, options: str) -> Iterator[None]:
    """Pyxis with these options for a while."""
    set_plugin(lab, options)
    try:
        yield
    finally:
        set_plugin(lab, "")


def read(run: Path) -> str:
    return "".join(path.read_text() for path in sorted((run / "logs").glob("*.log")))
